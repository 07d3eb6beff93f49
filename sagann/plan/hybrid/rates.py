"""Rates: seconds of each stage for a seed, as they are known from measured iterations; smoothed.

Seconds for a seed change little when seeds or threads are shared out anew, so they can be averaged over iterations; stage times cannot. A
task of the processor has thread-seconds for a seed. The smoothing is a moving average, of which each measurement is ``weight``; a
measurement beyond ``clip`` times the average counts as that, so that a pause of one iteration moves nothing far.

A trainer's seconds for a seed do change: it has a fixed part for each mini-batch (:mod:`sagann.plan.hybrid.costs`). So the rates know both, for
:meth:`Rates.times` the seconds for a seed as in the paper, and for :meth:`Rates.expected` the costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sagann.plan.hybrid.assignment import HOST, Assignment, StageTimes
from sagann.plan.hybrid.costs import Cost, CostFit, Damping

_LEAST_S = 1e-15
"Fewer seconds than any clock measures are none."


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Seconds of each stage for one seed; 0 where a stage has no work."""

    sample: float
    "Thread-seconds of sampling on the processor."
    sample_accelerator: float
    "Seconds of sampling on the accelerators."
    load: float
    "Thread-seconds of loading features."
    train: Mapping[str, float]
    """Seconds of each trainer: of the processor, thread-seconds of propagation; of an accelerator, copying or propagation, whichever takes
    longer. A trainer that never had a seed is missing."""
    fits: Mapping[str, CostFit] = field(default_factory=dict)
    "What was measured of each trainer with seeds, in the seconds of ``train``."
    damping: Damping = field(default_factory=Damping)
    "How the fits read measurements."

    def cost(self, name: str, threads: int) -> Cost | None:
        """Seconds of a trainer by its fit, or else for a seed as in ``train``; None for one that was never measured.

        Args:
            name: of the trainer.
            threads: those that train on the processor.
        """
        if name in self.fits:
            cost = self.fits[name].cost(self.damping)
        elif self.train.get(name, 0.0) > _LEAST_S:
            cost = Cost(fixed_s=0.0, seed_s=self.train[name])
        else:
            return None
        return cost.times(1 / threads) if name == HOST else cost

    def times(self, assignment: Assignment) -> StageTimes:
        """Seconds of the stages with an assignment, if they are in proportion to seeds and threads."""
        train = {name: self.train.get(name, 0.0) * count for name, count in assignment.seeds.items()}
        train[HOST] /= assignment.threads.train
        return self._stages(assignment, train)

    def expected(self, assignment: Assignment) -> StageTimes:
        """Seconds of the stages with an assignment, by the costs of the trainers."""
        costs = {name: self.cost(name, assignment.threads.train) for name in assignment.seeds}
        train = {name: cost.of(assignment.seeds[name]) if cost else 0.0 for name, cost in costs.items()}
        return self._stages(assignment, train)

    def _stages(self, assignment: Assignment, train: Mapping[str, float]) -> StageTimes:
        threads, by_host = assignment.threads, assignment.sampled_by_host
        return StageTimes(
            sample=self.sample * by_host / threads.sample,
            sample_accelerator=self.sample_accelerator * (assignment.total - by_host),
            load=self.load * assignment.total / threads.load,
            train=train,
        )


def rates_of(assignment: Assignment, times: StageTimes) -> Rates:
    """The rates that explain the measured times of one iteration."""
    threads, by_host = assignment.threads, assignment.sampled_by_host
    by_accelerators = assignment.total - by_host
    train, fits = {}, {}
    for name, seeds in assignment.seeds.items():
        if seeds:
            seconds = times.host_train * threads.train if name == HOST else times.accelerator_of(name)
            train[name] = seconds / seeds
            if seconds > _LEAST_S:
                fits[name] = CostFit.of(seeds, seconds)
    return Rates(
        sample=times.sample * threads.sample / by_host if by_host else 0.0,
        sample_accelerator=times.sample_accelerator / by_accelerators if by_accelerators else 0.0,
        load=times.load * threads.load / assignment.total,
        train=train,
        fits=fits,
    )


def smoothed(before: Rates | None, measured: Rates, damping: Damping) -> Rates:
    """The moving average with one more measurement."""
    if before is None:
        return measured

    def average(old: float, new: float) -> float:
        # A stage that had no work says nothing about its rate.
        if not old or not new:
            return old or new
        new = min(max(new, old / damping.clip), old * damping.clip)
        return (1 - damping.weight) * old + damping.weight * new

    train = {**before.train, **measured.train}
    fits = dict(measured.fits)
    for name, fit in before.fits.items():
        fits[name] = fit.after(fits[name], damping) if name in fits else fit.rested(damping)
    return replace(
        measured,
        sample=average(before.sample, measured.sample),
        sample_accelerator=average(before.sample_accelerator, measured.sample_accelerator),
        load=average(before.load, measured.load),
        train={name: average(before.train.get(name, 0.0), measured.train.get(name, 0.0)) for name in train},
        fits=fits,
        damping=damping,
    )
