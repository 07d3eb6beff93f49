"""Hybrid: the processor and accelerators train shares of the same mini-batch, balanced while they run.

Who trains is a :class:`~sagann.hybrid.trainer.Trainer`; :class:`~sagann.hybrid.shared_batches.SharedBatches` prepares the shares;
:class:`~sagann.hybrid.manager.Manager` decides who gets how many seeds and threads, by the policies of :mod:`sagann.plan.hybrid`;
:func:`~sagann.hybrid.synchronise.synchronised` adds the gradients.
"""
