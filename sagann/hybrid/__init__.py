"""Hybrid: the processor and accelerators train shares of the same mini-batch, balanced while they run.

Who trains is a :class:`~sagann.hybrid.trainer.Trainer`; :class:`~sagann.hybrid.shared_batches.SharedBatches` prepares the shares;
:class:`~sagann.hybrid.manager.Manager` decides who gets how many seeds and threads; :class:`~sagann.hybrid.synchronise.Synchroniser` publishes
the weights and adds the gradients. Pure are what it decides by: :mod:`~sagann.hybrid.assignment`, :mod:`~sagann.hybrid.costs`, :mod:`~sagann.hybrid.balance`,
:mod:`~sagann.hybrid.policies` (Algorithm 1 and ours), and :mod:`~sagann.hybrid.forecast`, the equations of a machine that is not at hand.
"""
