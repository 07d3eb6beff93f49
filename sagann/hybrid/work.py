"""TrainerWork: what each of several trainers did in an epoch, a part of its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sagann.hybrid.assignment import Assignment, StageTimes

_NAMES = "trainers"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerWork:
    """The work of an epoch's mini-batches by several trainers; after a resume within the epoch, of those since then."""

    names: tuple[str, ...]
    "Names of the trainers."
    seeds: tuple[int, ...]
    "Seeds of each trainer, in sum."
    train_s: tuple[float, ...]
    "Seconds of each trainer's propagation, forward and backward."
    idle_s: tuple[float, ...]
    "Seconds for which each trainer waited for the others' gradients, from its launch on."
    transfer_s: tuple[float, ...]
    "Seconds of the copies to each trainer; 0 for the processor."
    sample_s: float
    "Seconds of sampling: those of a thread over the number of threads."
    load_s: float
    "Seconds of loading features, likewise."
    num_moves: int
    "How often seeds or threads were moved."
    why: str
    "The last decision about seeds and threads, in words."

    @classmethod
    def none(cls, names: tuple[str, ...]) -> TrainerWork:
        """Trainers that have not done anything."""
        none = (0.0,) * len(names)
        return cls(
            names=names,
            seeds=(0,) * len(names),
            train_s=none,
            idle_s=none,
            transfer_s=none,
            sample_s=0.0,
            load_s=0.0,
            num_moves=0,
            why="",
        )

    def after(self, assignment: Assignment, times: StageTimes, seconds: float) -> TrainerWork:
        """The work with one iteration more, which took so long from the launch of the trainers to the sum of their gradients."""

        def added(sums: tuple[float, ...], values: Mapping[str, float]) -> tuple[float, ...]:
            return tuple(total + values.get(name, 0.0) for name, total in zip(self.names, sums, strict=True))

        idle_s = {name: max(0.0, seconds - times.train.get(name, 0.0)) for name in self.names}
        return replace(
            self,
            seeds=tuple(int(count) for count in added(self.seeds, assignment.seeds)),
            train_s=added(self.train_s, times.train),
            idle_s=added(self.idle_s, idle_s),
            transfer_s=added(self.transfer_s, times.transfer),
            sample_s=self.sample_s + times.sample,
            load_s=self.load_s + times.load,
        )

    @property
    def without_seeds(self) -> tuple[str, ...]:
        """Names of the trainers that trained nothing."""
        return tuple(name for name, count in zip(self.names, self.seeds, strict=True) if not count)

    def to_json(self) -> dict[str, Any]:
        """The values as part of a line of metrics.jsonl: lists with an entry for each trainer."""
        return {
            _NAMES: list(self.names),
            "trainer_seeds": list(self.seeds),
            "trainer_s": list(self.train_s),
            "trainer_idle_s": list(self.idle_s),
            "transfer_s": list(self.transfer_s),
            "sample_s": self.sample_s,
            "load_s": self.load_s,
            "trainer_moves": self.num_moves,
            "trainer_why": self.why,
        }
