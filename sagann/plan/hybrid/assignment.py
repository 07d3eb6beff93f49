"""Assignment: who gets how many of an iteration's seeds and of the processor's threads; and what was measured of an iteration.

Both are frozen. Policies read :class:`StageTimes` and return another :class:`Assignment`; they do not know whether a simulation or a
machine measured. The number of seeds of an iteration and the number of threads never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sagann.errors import InputError

HOST = "host"
"Name of the trainer that is the processor."


@dataclass(frozen=True, kw_only=True, slots=True)
class Threads:
    """Threads of the processor for each of its three tasks, at least one each."""

    sample: int
    "Threads that sample mini-batches."
    load: int
    "Threads that load features."
    train: int
    "Threads of the trainer on the processor."

    def __post_init__(self) -> None:
        if min(self.sample, self.load, self.train) < 1:
            raise InputError(
                f"a task of the processor has no thread: {self.sample} sample, {self.load} load, {self.train} "
                "train (in Threads)",
                hint="Give every task at least one thread.",
            )

    @property
    def total(self) -> int:
        """Number of threads of all tasks."""
        return self.sample + self.load + self.train

    def moved(self, count: int, *, giver: str, taker: str) -> Threads:
        """The same number of threads, ``count`` of which go from one task to another, as far as the giver keeps one."""
        threads = {"sample": self.sample, "load": self.load, "train": self.train}
        count = min(count, threads[giver] - 1)
        threads[giver] -= count
        threads[taker] += count
        return Threads(**threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """The work of an iteration, shared out."""

    seeds: Mapping[str, int]
    "Number of seeds of each trainer, by name; the processor is :data:`HOST`."
    threads: Threads
    "Threads of the processor."
    host_sampled: int | None = None
    "Number of seeds whose neighbours the processor samples, where accelerators sample too; None where the processor samples for all."

    def __post_init__(self) -> None:
        if HOST not in self.seeds or len(self.seeds) < 2 or min(self.seeds.values()) < 0 or not self.total:
            found = ", ".join(f"{name} {count}" for name, count in self.seeds.items()) or "no trainer"
            raise InputError(
                f"seeds cannot be shared out so: {found} (in Assignment.seeds)",
                hint=f"Name '{HOST}' and at least one accelerator, with numbers of at least 0 that are not all 0.",
            )
        if self.host_sampled is not None and not 0 <= self.host_sampled <= self.total:
            raise InputError(
                f"the processor cannot sample so many seeds: {self.host_sampled} of {self.total} (in "
                "Assignment.host_sampled)",
                hint="Give a number from 0 to the number of seeds.",
            )

    @property
    def total(self) -> int:
        """Number of seeds of an iteration."""
        return sum(self.seeds.values())

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Names of the trainers that are no processor."""
        return tuple(name for name in self.seeds if name != HOST)

    @property
    def sampled_by_host(self) -> int:
        """Number of seeds whose neighbours the processor samples."""
        return self.total if self.host_sampled is None else self.host_sampled


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """Seconds of the stages of an iteration; 0 for a stage that had no work."""

    sample: float
    "Sampling on the processor (T_SC)."
    sample_accelerator: float = 0.0
    "Sampling on accelerators (T_SA), the slowest of them."
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
        return max(self.sample, self.sample_accelerator, self.load, self.accelerator, self.host_train)

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
