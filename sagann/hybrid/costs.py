"""Costs: what is known of the stages from measured iterations, so that policies can say what another assignment would take.

Seconds for a seed of sampling and loading are moving averages, of which each measurement is ``_WEIGHT``; a measurement beyond ``_CLIP``
times the average counts as that, so that a pause of one iteration moves nothing far. A task of the processor has thread-seconds for a seed.

A trainer's seconds have a fixed part and a part for each seed: half of the seeds reach more than half of the vertices, because a vertex
that several seeds reach counts once. A straight line through the measured pairs of seeds and seconds knows both parts: least squares of
relative errors, in which earlier measurements weigh less and less (``_KEEPS``), a fixed part above 0 must be shown by the data
(``_PRIOR``), and

- before each measurement, the earlier ones are moved towards it as a whole (``_LEVEL``), by the same factor. So a trainer that
  becomes half as fast is not taken for one whose fixed part has grown;
- two measurements in a row that are far off in the same direction (``_CHANGE``) are no noise: the earlier ones are moved all the way at
  once;
- a trainer without seeds is believed to become a little faster with each iteration (``_HOPE``), and is tried again; the more often that
  was in vain, the later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import mul

from sagann.hybrid.assignment import HOST, Assignment, StageTimes

BAND = 0.03
"Relative difference below which nothing is moved (hysteresis)."
_WEIGHT, _CLIP, _KEEPS = 0.25, 2.0, 0.9
_PRIOR = 0.3
"How many measurements the belief is worth that a trainer has no fixed part."
_LEVEL = 0.15
_CHANGE = 0.35
"As the logarithm of measured over expected seconds."
_HOPE, _MOST_HALVED = 0.997, 2
"Part of its seconds that is left after each iteration without seeds. Whenever a trainer has none again, what is missing to 1 is halved, at most twice."
_LEAST_S = 1e-15
"Fewer seconds than any clock measures are these."
_LEAST_SLOPE = 1e-3
"Least seconds for a seed, as a part of those of the line through 0."


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Seconds of a trainer for an iteration."""

    fixed_s: float
    "Seconds of a mini-batch, however few seeds it has; at least 0."
    seed_s: float
    "Seconds for each of its seeds, above 0."

    def of(self, seeds: float) -> float:
        """Seconds for a number of seeds; a trainer without seeds needs none."""
        return self.fixed_s + self.seed_s * seeds if seeds else 0.0

    def times(self, factor: float) -> Cost:
        """The cost of a trainer that needs ``factor`` times as long."""
        return Cost(fixed_s=factor * self.fixed_s, seed_s=factor * self.seed_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class CostFit:
    """The line through the measured pairs (n seeds, y seconds) of a trainer: fixed_s + seed_s n = y, in relative errors.

    With u = 1 / y and v = n / y it minimises the weighted sum of (fixed_s u + seed_s v - 1)^2, and a term for the prior. All pairs have n >= 1
    and y > 0.
    """

    sums: tuple[float, ...]
    "Weighted sums of u^2, u v, v^2, u, v and 1."
    seeds: int
    seconds: float
    rests: int = 0
    "How often the trainer had no seeds, for one iteration or several in a row."
    is_resting: bool = False
    surprise: float = 0.0
    "Logarithm of measured over expected seconds in the last measurement, as far as the line was not moved."

    @classmethod
    def of(cls, seeds: int, seconds: float) -> CostFit:
        """The line through 0 and one measurement."""
        seconds = max(seconds, _LEAST_S)
        u, v = 1 / seconds, seeds / seconds
        return cls(sums=(u * u, u * v, v * v, u, v, 1.0), seeds=seeds, seconds=seconds)

    def cost(self) -> Cost:
        """The line: that of least squares, as far as the fixed part is not below 0 and the part for a seed is above 0."""
        uu, uv, vv, u, v, weight = self.sums
        through_zero_s = v / vv
        uu *= 1 + _PRIOR / weight
        # By the inequality of Cauchy and Schwarz, the determinant is above 0 with any prior.
        fixed_s = (u * vv - v * uv) / (uu * vv - uv * uv)
        if fixed_s <= 0:
            return Cost(fixed_s=0.0, seed_s=through_zero_s)
        seed_s = max((v - fixed_s * uv) / vv, _LEAST_SLOPE * through_zero_s)
        return Cost(fixed_s=max(0.0, u - seed_s * uv) / uu, seed_s=seed_s)

    def slower(self, factor: float) -> CostFit:
        """The line of a trainer that has needed ``factor`` times as long in every iteration."""
        once, twice = 1 / factor, 1 / factor**2
        return replace(self, sums=tuple(map(mul, self.sums, (twice, twice, twice, once, once, 1.0))))

    def after(self, measured: CostFit) -> CostFit:
        """The line with the last measurement of another one, too."""
        expected_s = self.cost().of(measured.seeds)
        surprise = math.log(measured.seconds / expected_s)
        shift = 0.0
        if surprise * self.surprise > 0 and min(abs(surprise), abs(self.surprise)) > _CHANGE:
            shift = min(surprise, self.surprise, key=abs)
            expected_s *= math.exp(shift)
        seconds = min(max(measured.seconds, expected_s / _CLIP), expected_s * _CLIP)
        before = self.slower(math.exp(shift) * (seconds / expected_s) ** _LEVEL)
        new = CostFit.of(measured.seeds, seconds)
        return CostFit(
            sums=tuple(_KEEPS * old + more for old, more in zip(before.sums, new.sums, strict=True)),
            seeds=measured.seeds,
            seconds=measured.seconds,
            rests=self.rests,
            surprise=surprise - shift,
        )

    def rested(self) -> CostFit:
        """The line after an iteration without seeds."""
        rests = self.rests + (not self.is_resting)
        hope = 1 - (1 - _HOPE) / 2 ** min(rests - 1, _MOST_HALVED)
        return replace(self.slower(hope), rests=rests, is_resting=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What is known of every stage."""

    sample: float
    "Thread-seconds of sampling for a seed."
    load: float
    "Thread-seconds of loading features for a seed."
    fits: Mapping[str, CostFit]
    """What was measured of each trainer with seeds: of the processor, thread-seconds of propagation; of an accelerator, copying or propagation,
    whichever takes longer. A trainer that never had a seed is missing."""

    @classmethod
    def of(cls, assignment: Assignment, times: StageTimes) -> Rates:
        """The rates that explain the measured times of one iteration."""
        threads, total = assignment.threads, assignment.total
        return cls(
            sample=times.sample * threads.sample / total,
            load=times.load * threads.load / total,
            fits={
                name: CostFit.of(
                    seeds, times.host_train * threads.train if name == HOST else times.accelerator_of(name)
                )
                for name, seeds in assignment.seeds.items()
                if seeds
            },
        )

    def after(self, measured: Rates) -> Rates:
        """The rates with one more measurement."""

        def average(old: float, new: float) -> float:
            # A stage that had no work says nothing about its rate.
            if not old or not new:
                return old or new
            new = min(max(new, old / _CLIP), old * _CLIP)
            return (1 - _WEIGHT) * old + _WEIGHT * new

        fits = dict(measured.fits)
        for name, fit in self.fits.items():
            fits[name] = fit.after(fits[name]) if name in fits else fit.rested()
        return replace(
            self, sample=average(self.sample, measured.sample), load=average(self.load, measured.load), fits=fits
        )

    def cost(self, name: str, threads: int) -> Cost | None:
        """The cost of a trainer, with so many threads that train on the processor; None for one that was never measured."""
        if name not in self.fits:
            return None
        cost = self.fits[name].cost()
        return cost.times(1 / threads) if name == HOST else cost

    def times(self, assignment: Assignment) -> StageTimes:
        threads = assignment.threads
        costs = {name: self.cost(name, threads.train) for name in assignment.seeds}
        return StageTimes(
            sample=self.sample * assignment.total / threads.sample,
            load=self.load * assignment.total / threads.load,
            train={name: cost.of(assignment.seeds[name]) if cost else 0.0 for name, cost in costs.items()},
        )
