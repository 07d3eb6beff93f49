"""Manager: who gets how many seeds and threads from the next iteration on. It asks a policy after each iteration.

Iterations are prepared ahead, so a decision reaches the trainers some iterations later; what was measured counts for the assignment that
the iteration was prepared with.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-A (dynamic resource management).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sagann.hybrid.assignment import HOST, Assignment, StageTimes, Threads, split_by
from sagann.hybrid.costs import Rates
from sagann.hybrid.policies import Balance, next_balance


@dataclass(kw_only=True, slots=True)
class TrainerWork:
    """The work of an epoch's mini-batches by several trainers; after a resume within the epoch, of those since then.

    Counts and seconds are sums, by the name of the trainer.
    """

    names: tuple[str, ...]
    seeds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    train_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    "Seconds of each trainer's propagation, forward and backward."
    idle_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    "Seconds for which each trainer waited for the others' gradients, from its launch on."
    transfer_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    "Seconds of the copies to each trainer; 0 for the processor."
    simulation_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    "Seconds that it took to simulate a trainer, whose other seconds are those of the simulated hardware; 0 for others."
    sample_s: float = 0.0
    "Seconds of sampling: those of a thread over the number of threads."
    load_s: float = 0.0
    "Seconds of loading features, likewise."
    num_moves: int = 0
    why: str = ""

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
        """The values as part of a line of metrics.jsonl: lists with an entry for each trainer; those of simulations only if there is one."""
        by_trainer = (self.seeds, self.train_s, self.idle_s, self.transfer_s, self.simulation_s)
        seeds, train_s, idle_s, transfer_s, simulation_s = (
            [each[name] for name in self.names] for each in by_trainer
        )
        return {
            "trainers": list(self.names),
            "trainer_seeds": seeds,
            "trainer_s": train_s,
            "trainer_idle_s": idle_s,
            "transfer_s": transfer_s,
            **({"trainer_simulation_s": simulation_s} if any(simulation_s) else {}),
            "sample_s": self.sample_s,
            "load_s": self.load_s,
            "trainer_moves": self.num_moves,
            "trainer_why": self.why,
        }


WARM_UP = 3
"Iterations that nothing is learned from: kernels are compiled, and files are read for the first time."
_LEAST_PART = 0.75
"Part of a whole mini-batch that the last one of an epoch must have, to be learned from."


class Manager:
    """Shares out the seeds of each iteration, and the threads of the processor, by a policy of :data:`sagann.hybrid.policies.POLICIES`.

    Seeds are in proportion to the cores of each trainer at first.
    """

    def __init__(self, policy: str, cores: dict[str, int], *, batch_size: int, uses_host: bool) -> None:
        weights = {name: float(number) for name, number in cores.items() if name != HOST or uses_host}
        fewest = 1 if batch_size >= len(weights) else 0
        seeds = {HOST: 0} | split_by(batch_size, weights, fewest=fewest)
        spare = max(3, cores[HOST])
        # A processor that does not train samples and loads with all its threads but the one that launches.
        each = 1 if uses_host else (spare - 1) // 2
        threads = Threads(sample=each, load=each, train=spare - 2 * each)
        self._policy = policy if fewest else "static"
        self._balance = Balance(assignment=Assignment(seeds=seeds, threads=threads), uses_host=uses_host)
        self._cold = WARM_UP
        self._all_cores = dict(cores)
        self.cores = cores[HOST]
        self.work = TrainerWork(names=tuple(weights))
        "Seeds and seconds of all trainers since :meth:`begin`."

    @property
    def assignment(self) -> Assignment:
        """Seeds and threads of an iteration that is prepared now."""
        return self._balance.assignment

    @property
    def rates(self) -> Rates | None:
        return self._balance.rates

    def start_from(self, assignment: Assignment, policy: str | None = None) -> None:
        """Begin anew with an assignment, as if nothing had been measured; with the same policy, or another one."""
        self._balance = Balance(assignment=assignment, uses_host=self._balance.uses_host)
        self._policy = policy or self._policy

    def state_dict(self) -> dict[str, Any]:
        """Seeds and threads of an iteration that is prepared now, and the cores that they are shared out among."""
        now = self.assignment
        return {"cores": dict(self._all_cores), "seeds": dict(now.seeds), "threads": asdict(now.threads)}

    def load_state_dict(self, found: Mapping[str, Any]) -> bool:
        """Go on with saved seeds and threads; False, and nothing changes, if they are of other trainers, cores or batches."""
        now = self.assignment
        saved = Assignment(seeds=dict(found["seeds"]), threads=Threads(**found["threads"]))
        is_same = found["cores"] == self._all_cores and saved.seeds.keys() == now.seeds.keys()
        if not is_same or saved.total != now.total or saved.threads.total != now.threads.total:
            return False
        self.start_from(replace(saved, seeds={name: saved.seeds[name] for name in now.seeds}))
        return True

    @property
    def why(self) -> str:
        if self._cold:
            return f"Warming up: {WARM_UP - self._cold} of {WARM_UP} iterations."
        return self._balance.why

    def share_out(self, num_seeds: int) -> Assignment:
        """The assignment of an iteration with so many seeds: the last one of an epoch may have fewer."""
        now = self.assignment
        if num_seeds == now.total:
            return now
        return replace(now, seeds=split_by(num_seeds, {name: float(part) for name, part in now.seeds.items()}))

    def begin(self) -> None:
        self.work = TrainerWork(names=self.work.names)

    def learn(self, assignment: Assignment, times: StageTimes) -> bool:
        """Take in the seconds of the stages of an iteration that was prepared with an assignment, and decide; whether that moved something."""
        before = self._balance
        if assignment.total < _LEAST_PART * before.assignment.total:
            # A small batch has other seconds for a seed.
            return False
        if self._cold:
            self._cold -= 1
            return False
        self._balance = next_balance(self._policy, before, times, ran_with=assignment)
        moved = self._balance.assignment != before.assignment
        self.work.num_moves += moved
        return moved
