"""Iterations: what processor and accelerators do for some iterations, as a plan for the one simulator.

An iteration is sample, load, transfer to each accelerator, propagate on each trainer, synchronise. Resources:

- ``host.sample``, ``host.load`` and ``host`` are threads of the processor; ``accelerator0`` and so on compute.
- Copies to an accelerator take the link ``accelerator0.copy_in``, and share the switches that the machine names.
- The gradients of an iteration are reduced when all trainers have made theirs. Then the next iteration propagates: training is synchronous.

How far stages work ahead is a :data:`Prefetch`. With two stages, a mini-batch is loaded while the one before is copied and a third one is
trained (figure 7). With one, loading and copying are one stage. With none, an iteration begins when the one before has ended.

The host's memory has room for the features of four iterations, an accelerator's for two mini-batches. Every one is dropped after it is
trained, so the most that a memory holds is known: ``plan.peak_bytes``.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. III, IV-B and V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sagann.plan.hybrid.assignment import HOST, Assignment, StageTimes
from sagann.plan.hybrid.batches import BatchCounts, expected_counts
from sagann.plan.hybrid.degrees import DegreeLaw
from sagann.plan.hybrid.iteration_work import TASKS, IterationWork, Prefetch, on_full_processor
from sagann.plan.hybrid.rehearsed import RehearsedJob
from sagann.plan.hybrid.work import (
    Refinements,
    Widths,
    copied_bytes,
    gathered_bytes,
    propagation_s,
    rows_bytes,
    synchronisation_bytes,
)
from sagann.plan.machine import Link, Machine
from sagann.plan.steps import UNLIMITED, Block, Move, Plan, Step

_SAMPLE, _PROPAGATE = 0, 3
_MEMORY = "host.memory"
# Enough that loading, copying and training never wait for room in the host's memory.
_IN_HOST = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is trained: a model on sampled mini-batches of a graph."""

    law: DegreeLaw
    "Degrees of the graph."
    num_train: int
    "Number of training vertices, the seeds of an epoch."
    widths: Widths
    "The model; as many layers as there are fanouts."
    fanouts: tuple[int, ...]
    "Most in-edges that a vertex picks, for each hop; the first is nearest the seeds."
    sampled_edges_per_s: float
    "Edges that one thread of the processor samples per second, measured beforehand, as in the paper."
    refinements: Refinements = field(default_factory=Refinements)
    "Which parts of an iteration are counted that the paper's equations leave out."
    prefetch: Prefetch = "two stages"
    "How far stages work ahead."

    @property
    def model_bytes(self) -> int:
        """Bytes of all weights."""
        return self.widths.model_bytes

    def counts(self, num_seeds: int) -> BatchCounts:
        """Expected vertices and edges of a mini-batch."""
        return expected_counts(self.law, self.fanouts, num_seeds, deduplicated=self.refinements.deduplicates)


AnyJob = Job | RehearsedJob
"What is trained, by equations or by a rehearsal."


def iteration_work(machine: Machine, job: AnyJob, assignment: Assignment) -> IterationWork:
    """The work of each stage: rehearsed, or from the counts of the mini-batches and the rates of the machine.

    Where loading and the processor's trainer share memory, each runs at half its rate while the other is beside it. So both take longer by
    the memory seconds of the shorter one. A processor with fewer cores than its three tasks has none to spare
    (:func:`~sagann.plan.hybrid.iteration_work.on_full_processor`).
    """
    work = job.work(assignment) if isinstance(job, RehearsedJob) else _equated(machine, job, assignment)
    if machine.num_cores >= TASKS:
        return work
    return on_full_processor(work, assignment, num_cores=machine.num_cores)


def _equated(machine: Machine, job: Job, assignment: Assignment) -> IterationWork:
    """The work of the equations."""
    # Trainers with as many seeds have like mini-batches.
    sizes = {seeds: job.counts(seeds) for seeds in set(assignment.seeds.values()) if seeds}
    counts = {name: sizes[seeds] for name, seeds in assignment.seeds.items() if seeds}
    threads, widths, refinements = assignment.threads, job.widths, job.refinements
    edges = sum(each.num_edges for each in counts.values())
    load_bytes = sum(rows_bytes(each, widths) for each in counts.values())
    load_s = load_bytes / min(machine.pick_bytes * threads.load, machine.copy_bytes)
    propagate_s = {
        name: propagation_s(
            each,
            widths,
            _trainer(machine, name, threads.train),
            pipelined=machine.pipelines_layers(name),
            refinements=refinements,
        )
        for name, each in counts.items()
    }
    if refinements.shares_memory and HOST in counts:
        delay_s = min(load_bytes / machine.copy_bytes, gathered_bytes(counts[HOST], widths) / machine.gather_bytes)
        load_s += delay_s
        propagate_s[HOST] += delay_s
    copied = {name: copied_bytes(each, widths, refinements) for name, each in counts.items() if name != HOST}
    return IterationWork(
        sample_s=edges / (job.sampled_edges_per_s * threads.sample),
        load_bytes=load_bytes,
        load_bytes_per_s=load_bytes / load_s,
        copied_bytes=copied,
        copy_core_s=sum(copied.values()) / machine.copy_bytes,
        propagate_s=propagate_s,
        num_edges=edges,
    )


def stage_times(machine: Machine, job: AnyJob, assignment: Assignment) -> StageTimes:
    """Seconds of every stage: what a run would measure."""
    work = iteration_work(machine, job, assignment)
    links = _links(machine, assignment, work)
    transfer = dict.fromkeys(assignment.accelerators, 0.0)
    for name, count in work.copied_bytes.items():
        link = links[f"{name}.copy_in"]
        transfer[name] = link.latency_s + count / link.bytes_per_s
    return StageTimes(
        sample=work.sample_s,
        load=work.load_bytes / work.load_bytes_per_s,
        transfer=transfer,
        train={name: work.propagate_s.get(name, 0.0) for name in assignment.seeds},
    )


def plan_of(job: AnyJob, assignment: Assignment, work: IterationWork, *, num_iterations: int) -> Plan:
    """The operations of some iterations, in the order in which they begin on each resource."""
    writer = _Writer(job, assignment, work)
    ahead = 0 if job.prefetch == "none" else 1
    for number in range(num_iterations + ahead):
        if number < num_iterations:
            writer.feed(number)
        if number >= ahead:
            writer.train(number - ahead)
    writer.finish()
    return Plan(
        operations=tuple(writer.operations),
        bounds=(0, num_iterations),
        budget_bytes=UNLIMITED,
        peak_bytes=writer.peak_bytes,
        initial=frozenset(writer.initial),
    )


def machine_of(machine: Machine, assignment: Assignment, work: IterationWork) -> Machine:
    """The machine with a link for every resource that an iteration's moves occupy."""
    return replace(machine, links=_links(machine, assignment, work))


def resource_seconds(work: IterationWork, assignment: Assignment, step: Step) -> tuple[float, float]:
    """Seconds of a step, and the number of cores that it takes from others: 0 for an accelerator, which has its own, and where seconds say it already."""
    if step.number == _SAMPLE:
        return work.sample_s, 0 if work.host_is_full else assignment.threads.sample
    cores = assignment.threads.train if step.owner == HOST and not work.host_is_full else 0
    return work.propagate_s[step.owner], cores


class _Writer:
    """Appends the operations of iterations."""

    def __init__(self, job: AnyJob, assignment: Assignment, work: IterationWork) -> None:
        self.job = job
        self.work = work
        self.names = [name for name, seeds in assignment.seeds.items() if seeds]
        self.operations: list[Step | Move] = []
        self.initial: set[Block] = set()
        # Iterations whose mini-batches lie in the host's memory, and in that of an accelerator, at a time.
        self.in_host, self.in_accelerator = (1, 1) if job.prefetch == "none" else (_IN_HOST, 2)
        # Numbers of the operations of each iteration.
        self.loaded: list[int] = []
        self.copied: list[list[int]] = []
        self.propagated: list[list[int]] = []
        self.reduced: list[list[int]] = []

    def feed(self, number: int) -> None:
        """Sample, load and copy the mini-batches of an iteration."""
        before = []
        if self.job.prefetch == "none":
            before = self.reduced[number - 1] if number else []
        elif number >= 2:
            # Sampling is at most one iteration ahead of loading.
            before = [self.loaded[number - 2]]
        sample = Step(kind="stage", number=_SAMPLE, interval=number, resource="host.sample", after=tuple(before))
        after = [self._add(sample)]
        if number >= self.in_host:
            self._release(number - self.in_host)
        if self.job.prefetch == "one stage" and number:
            after += self.copied[number - 1]
        self.loaded.append(
            self._add(
                Move(
                    "load",
                    self._rows(number, _MEMORY),
                    round(self.work.load_bytes),
                    resource="host.load",
                    after=tuple(after),
                )
            )
        )
        self.copied.append(
            [
                self._add(Move("load", self._rows(number, name), round(count), after=(self.loaded[number],)))
                for name, count in self.work.copied_bytes.items()
            ]
        )

    def train(self, number: int) -> None:
        """Propagate and synchronise."""
        before = self.reduced[number - 1] if number else []
        steps = [self._propagate(number, name, before) for name in self.names]
        self.propagated.append(steps)
        if len(self.names) > 1 or self.work.synchronise_bytes_per_s is not None:
            steps = [
                self._add(
                    Move(
                        "all-reduce",
                        _gradients(number, name),
                        synchronisation_bytes(self.job.model_bytes),
                        resource=f"{name}.synchronise",
                        after=(step,),
                    )
                )
                for name, step in zip(self.names, steps, strict=True)
            ]
        self.reduced.append(steps)
        for name in self.names:
            self._add(Move("drop", _gradients(number, name), self.job.model_bytes))

    def finish(self) -> None:
        """Drop the features of the last iterations."""
        for number in range(max(0, len(self.loaded) - self.in_host), len(self.loaded)):
            self._release(number)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that a memory holds: a trainer's, of mini-batches and gradients, or the host's, of features."""
        gradients = self.job.model_bytes
        trainers = [self.in_accelerator * round(count) + gradients for count in self.work.copied_bytes.values()]
        return max([self.in_host * round(self.work.load_bytes), gradients, *trainers])

    def _propagate(self, number: int, name: str, before: Sequence[int]) -> int:
        is_host = name == HOST
        rows = () if is_host else (self._rows(number, name),)
        step = self._add(
            Step(
                kind="stage",
                number=_PROPAGATE,
                interval=number,
                resource=name,
                reads=rows,
                writes=(_gradients(number, name),),
                after=(*before, self.loaded[number]) if is_host else tuple(before),
            )
        )
        for each in rows:
            self._add(Move("drop", each, round(self.work.copied_bytes[name])))
        return step

    def _release(self, number: int) -> None:
        """Drop the features of an iteration from the host's memory when they are copied and trained on."""
        after = list(self.copied[number])
        if HOST in self.names:
            after.append(self.propagated[number][self.names.index(HOST)])
        self._add(Move("drop", self._rows(number, _MEMORY), round(self.work.load_bytes), after=tuple(after)))

    def _add(self, operation: Step | Move) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1

    def _rows(self, number: int, owner: str) -> Block:
        block = Block("value", "rows", number, owner=owner)
        self.initial.add(block)
        return block


def _gradients(number: int, owner: str) -> Block:
    return Block("grad", "weights", number, owner=owner)


def _trainer(machine: Machine, name: str, threads: int) -> Machine:
    """The rates of a trainer; of the processor, those of some of its cores."""
    device = machine.device(name)
    if name != HOST:
        return device
    share = min(1.0, threads / machine.num_cores)
    return replace(device, matmul_flops=share * device.matmul_flops, gather_bytes=share * device.gather_bytes)


def _links(machine: Machine, assignment: Assignment, work: IterationWork) -> dict[str, Link]:
    """The machine's links, and those of loading and synchronising. What was rehearsed has the rates of the rehearsal."""
    links = dict(machine.links)
    links["host.load"] = Link(bytes_per_s=work.load_bytes_per_s)
    for name, rate in work.copy_bytes_per_s.items():
        links[f"{name}.copy_in"] = Link(bytes_per_s=rate)
    for name in assignment.seeds:
        # Gradients are added in the host's memory.
        link = Link(bytes_per_s=machine.copy_bytes) if name == HOST else machine.links[f"{name}.copy_in"]
        synchronise_rate = work.synchronise_bytes_per_s
        links[f"{name}.synchronise"] = link if synchronise_rate is None else Link(bytes_per_s=synchronise_rate)
    return links
