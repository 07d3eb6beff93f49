"""TrainerWork: what each of several trainers did in an epoch, a part of its record."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from sagann.hybrid.assignment import Assignment, StageTimes


@dataclass(kw_only=True, slots=True)
class TrainerWork:
    """The work of an epoch's mini-batches by several trainers; after a resume within the epoch, of those since then.

    Counts and seconds are sums, by the name of the trainer.
    """

    names: tuple[str, ...]
    "Names of the trainers."
    seeds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    "Seeds of each trainer."
    train_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    "Seconds of each trainer's propagation, forward and backward."
    idle_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    "Seconds for which each trainer waited for the others' gradients, from its launch on."
    transfer_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    "Seconds of the copies to each trainer; 0 for the processor."
    sample_s: float = 0.0
    "Seconds of sampling: those of a thread over the number of threads."
    load_s: float = 0.0
    "Seconds of loading features, likewise."
    num_moves: int = 0
    "How often seeds or threads were moved."
    why: str = ""
    "The last decision about seeds and threads, in words."

    def count(self, assignment: Assignment, times: StageTimes, seconds: float, why: str) -> None:
        """Count one iteration more, which took so long from the launch of the trainers to the sum of their gradients."""
        for name in self.names:
            train_s = times.train.get(name, 0.0)
            self.seeds[name] += assignment.seeds.get(name, 0)
            self.train_s[name] += train_s
            self.idle_s[name] += max(0.0, seconds - train_s)
            self.transfer_s[name] += times.transfer.get(name, 0.0)
        self.sample_s += times.sample
        self.load_s += times.load
        self.why = why

    def to_json(self) -> dict[str, Any]:
        """The values as part of a line of metrics.jsonl: lists with an entry for each trainer."""
        by_trainer = (self.seeds, self.train_s, self.idle_s, self.transfer_s)
        seeds, train_s, idle_s, transfer_s = ([each[name] for name in self.names] for each in by_trainer)
        return {
            "trainers": list(self.names),
            "trainer_seeds": seeds,
            "trainer_s": train_s,
            "trainer_idle_s": idle_s,
            "transfer_s": transfer_s,
            "sample_s": self.sample_s,
            "load_s": self.load_s,
            "trainer_moves": self.num_moves,
            "trainer_why": self.why,
        }
