"""Hybrid training: a processor and accelerators that share each iteration's seeds. Pure: predictions and decisions only.

- :mod:`sagann.plan.hybrid.degrees`, :mod:`~sagann.plan.hybrid.batches`: vertices and edges of a mini-batch that are expected.
- :mod:`sagann.plan.hybrid.work`: bytes and seconds of the stages, equations 7 to 13 of HyScale-GNN.
- :mod:`sagann.plan.hybrid.rehearsed`: the same, as trainers of this machine took in a rehearsal.
- :mod:`sagann.plan.hybrid.iterations`: iterations as operations of a plan, which the one simulator times.
- :mod:`sagann.plan.hybrid.predict`: seconds of an iteration and of an epoch, the best split, what another accelerator would bring.
- :mod:`sagann.plan.hybrid.assignment`: who gets how many seeds and threads, and the measured seconds of the stages.
- :mod:`sagann.plan.hybrid.balance`, :mod:`~sagann.plan.hybrid.policies`: Algorithm 1 and its rivals, over measured seconds alone.
"""
