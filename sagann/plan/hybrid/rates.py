"""Rates: seconds of each stage for a seed, as they are known from measured iterations; smoothed.

Seconds for a seed do not change when seeds or threads are shared out anew, so they can be averaged over iterations; stage times cannot. A
task of the processor has thread-seconds for a seed. The smoothing is a moving average, of which each measurement is ``weight``; a
measurement beyond ``clip`` times the average counts as that, so that a pause of one iteration moves nothing far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sagann.plan.hybrid.assignment import HOST, Assignment, StageTimes


@dataclass(frozen=True, kw_only=True, slots=True)
class Damping:
    """How much one iteration counts, and what is too little to act on."""

    weight: float = 0.25
    "Part of a measurement in the moving average, above 0, at most 1."
    clip: float = 2.0
    "A measurement counts at most as that many times the average, and at least as that part; at least 1."
    band: float = 0.03
    "Relative difference below which nothing is moved (hysteresis)."
    gain: float = 0.5
    "Part of the way to equal times that one decision of Algorithm 1 goes, above 0, at most 1."


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

    def times(self, assignment: Assignment) -> StageTimes:
        """Seconds of the stages with an assignment, if they are in proportion to seeds and threads."""
        threads, seeds = assignment.threads, assignment.seeds
        by_host = assignment.sampled_by_host
        train = {name: self.train.get(name, 0.0) * count for name, count in seeds.items()}
        train[HOST] /= threads.train
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
    train = {}
    for name, seeds in assignment.seeds.items():
        if seeds:
            seconds = times.host_train * threads.train if name == HOST else times.accelerator_of(name)
            train[name] = seconds / seeds
    return Rates(
        sample=times.sample * threads.sample / by_host if by_host else 0.0,
        sample_accelerator=times.sample_accelerator / by_accelerators if by_accelerators else 0.0,
        load=times.load * threads.load / assignment.total,
        train=train,
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
    return replace(
        measured,
        sample=average(before.sample, measured.sample),
        sample_accelerator=average(before.sample_accelerator, measured.sample_accelerator),
        load=average(before.load, measured.load),
        train={name: average(before.train.get(name, 0.0), measured.train.get(name, 0.0)) for name in train},
    )
