"""Assignment: who gets how many of an iteration's seeds and of the processor's threads; and what was measured of an iteration.

Both are frozen. Policies read :class:`StageTimes` and return another :class:`Assignment`; they do not know whether equations or a
machine gave the seconds. The number of seeds of an iteration and the number of threads never change. The processor samples for all trainers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HOST = "host"
"Name of the trainer that is the processor."


@dataclass(frozen=True, kw_only=True, slots=True)
class Threads:
    """Threads of the processor for each of its three tasks, at least one each."""

    sample: int
    load: int
    train: int

    @property
    def total(self) -> int:
        return self.sample + self.load + self.train


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """The work of an iteration, shared out."""

    seeds: Mapping[str, int]
    "Number of seeds of each trainer, by name; the processor is :data:`HOST`, which is always among them."
    threads: Threads

    @property
    def total(self) -> int:
        """Number of seeds of an iteration."""
        return sum(self.seeds.values())

    @property
    def working(self) -> Threads:
        """The threads that work: while the processor has no seed one trains, and two cores are left to it and to the devices, if there are so many."""
        now = self.threads
        if self.seeds[HOST]:
            return now
        spare = min(now.sample + now.load, max(2, now.total - 2))
        load = min(max(now.load * spare // (now.sample + now.load), 1), spare - 1)
        return Threads(sample=spare - load, load=load, train=1)

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Names of the trainers that are no processor."""
        return tuple(name for name in self.seeds if name != HOST)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """Seconds of the stages of an iteration; 0 for a stage that had no work."""

    sample: float
    "Sampling (T_SC)."
    load: float
    "Loading features (T_Load)."
    transfer: Mapping[str, float] = field(default_factory=dict)
    "Copying to each accelerator (T_Tran), by its name."
    train: Mapping[str, float]
    "Propagation on each trainer (T_TC, T_TA), by its name."

    @property
    def accelerator(self) -> float:
        """Copying or propagation on the accelerators, whichever takes longest (T_Accel)."""
        return max((self.accelerator_of(name) for name in self.train if name != HOST), default=0.0)

    @property
    def host_train(self) -> float:
        """Propagation on the processor (T_TC)."""
        return self.train.get(HOST, 0.0)

    @property
    def slowest(self) -> float:
        """The longest of the stages, which sets the pace of the pipeline (equation 6)."""
        return max(self.sample, self.load, self.accelerator, self.host_train)

    @property
    def bottleneck(self) -> str:
        """The stage that takes longest, in words; of stages that take the same, the one that feeds the others."""
        stages = {
            "sampling on the processor": self.sample,
            "loading features from the host's memory": self.load,
            **{f"copies to {name}": seconds for name, seconds in self.transfer.items()},
            **{f"propagation on {name}": seconds for name, seconds in self.train.items() if name != HOST},
            "propagation on the processor": self.host_train,
        }
        return max(stages, key=lambda name: round(stages[name] / max(self.slowest, 1e-300), 2))

    def accelerator_of(self, name: str) -> float:
        """Copying or propagation of one accelerator, whichever takes longer."""
        return max(self.transfer.get(name, 0.0), self.train[name])


def split_evenly(total: int, parts: int) -> list[int]:
    """``total`` as ``parts`` whole numbers that differ by at most one."""
    return [total // parts + (at < total % parts) for at in range(parts)]


def split_by(total: int, weights: Mapping[str, float], *, fewest: int = 0) -> dict[str, int]:
    """``total`` as whole numbers in proportion to weights, by the largest remainders; each is at least ``fewest``.

    Example:
        >>> split_by(10, {"host": 1.0, "accelerator0": 2.0})
        {'host': 3, 'accelerator0': 7}
    """
    free, scale = total - fewest * len(weights), sum(weights.values())
    exact = {name: free * weight / scale if scale else free / len(weights) for name, weight in weights.items()}
    shares = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(weights, key=lambda name: shares[name] - exact[name])
    for name in by_remainder[: free - sum(shares.values())]:
        shares[name] += 1
    return {name: fewest + share for name, share in shares.items()}
