"""Epochs of several devices: planned by the planner of workers, joined, verified and simulated."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import get_args

from bench.epochs.graphs import Shape
from bench.memory_policies import captured_for
from bench.roc.graphs import Cut, Generated, Share
from bench.roc.joined import joined, with_rings
from sagann.compiler.model_program import ModelProgram
from sagann.graph import Topology
from sagann.nn import ModelConfig
from sagann.partition import CostFeatures, CostModel, Measurement, balanced_bounds, count_cost_features
from sagann.plan.epoch import PlacementPolicy, Planned, plan_epoch, replaced
from sagann.plan.exchanges import Exchanges
from sagann.plan.gradients import Gradients
from sagann.plan.hops import HopSize, gathered_hops, read_data, topology_of
from sagann.plan.machine import Machine
from sagann.plan.residency import BudgetError, place
from sagann.plan.simulate import simulate
from sagann.plan.spec import verify
from sagann.plan.steps import FILES, Step, StepKind
from sagann.plan.timeline import Timeline
from sagann.plan.work import StepWork

MACHINE = Path(__file__).with_name("machine.toml")
DEVICE_BYTES = 15 << 30
"Memory of a device for blocks: 16 GiB (data sheet) less what CUDA and libraries take, an assumption."
HIDDEN = 128
DROPOUT = 0.5
MOST_INTERVALS = 256
LEARNING_EPOCHS = 4
"Epochs from which the cost model learns, each with the parts that it found before."
FORWARD: tuple[StepKind, ...] = ("transform", "transform_loss", "gather", "finish")
"Steps of a forward pass, between exchanges."


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model on a graph of a shape."""

    shape: Shape
    model: str
    trains: bool = True
    "Whether the model is trained; else a pass is a prediction: forward, without dropout."

    @cached_property
    def _captured(self) -> tuple[ModelProgram, Sequence[Topology]]:
        dropout = DROPOUT if self.trains else 0.0
        return captured_for(self.shape, ModelConfig(model=self.model, layers=2, hidden=HIDDEN, dropout=dropout))

    @property
    def program(self) -> ModelProgram:
        return self._captured[0]

    @cached_property
    def gradients(self) -> Gradients:
        return Gradients(self.program)

    @cached_property
    def parameter_bytes(self) -> int:
        """Bytes of the gradients of all parameters; 0 where there are none."""
        if not self.trains:
            return 0
        names = {name for name, _ in self.program.parameters}
        found = {}
        for stage in (self.program.param, *self.program.stages):
            for node in stage.module.graph.nodes:
                if node.op == "placeholder" and str(node.target) in names:
                    found[str(node.target)] = node.meta["val"].nbytes
        return sum(found.values())

    def travelling_bytes(self, part: Share) -> int:
        """Bytes of the rows that a worker sends and receives, of all values together: one may be on its way while the next is made."""
        intervals = part.intervals
        rows = intervals.bounds[-1] - intervals.num_vertices + sum(intervals.sent.values())
        return rows * sum(self._exchanged_bytes)

    @cached_property
    def exchanged_row_bytes(self) -> int:
        """Bytes of a row of the widest value that is exchanged; 0 where nothing is."""
        return max(self._exchanged_bytes, default=0)

    @cached_property
    def _exchanged_bytes(self) -> list[int]:
        forms = [self.program.forms[name] for name in Exchanges.of(self.program, self.gradients).first]
        return [math.prod(form.shape) * form.dtype.itemsize for form in forms]

    def hops(self, part: Share) -> dict[int, HopSize]:
        """Sizes of a worker's chunks."""
        found, read = {}, read_data(self.program)
        for number, hop in gathered_hops(*self._captured).items():
            known = HopSize.of(topology_of(hop), {}).with_data(topology_of(hop), read[number])
            found[number] = replace(known, num_edges=self.shape.edges, edges=part.edges)
        return found


@dataclass(frozen=True, kw_only=True)
class Epoch:
    timeline: Timeline
    num_intervals: int
    "Number of intervals of each worker, P."
    step_s: Mapping[Step, float]
    "Seconds of each step alone."
    origins: Mapping[Step, tuple[int, Step]]
    "For each step, the rank of its worker, and the step in that worker's own plan."

    @property
    def seconds(self) -> float:
        return self.timeline.seconds

    @cached_property
    def busy_s(self) -> Mapping[str, float]:
        """Seconds in which the busiest device, copy engine, link inside a node, and way between nodes is busy."""
        of_resource = defaultdict[str, float](float)
        for span in self.timeline.spans:
            of_resource[span.resource] += span.seconds
        found = defaultdict[str, float](float)
        for resource, seconds in of_resource.items():
            kind = kind_of(resource)
            found[kind] = max(found[kind], seconds)
        return found

    @property
    def busiest(self) -> str:
        """The kind of resource that is busy longest, and the share of the epoch in which it is."""
        kind = max(self.busy_s, key=lambda each: self.busy_s[each])
        return f"{kind} {self.busy_s[kind] / self.seconds:.0%}"


def kind_of(resource: str) -> str:
    """What a resource is, in a word."""
    if "copy" in resource:
        return "PCIe"
    return "network" if "network" in resource else "NVLink" if "link" in resource else "compute"


def simulated(
    job: Job, machine: Machine, graph: Generated, ranges: Sequence[int], *, placement: PlacementPolicy = place
) -> Epoch:
    """Plan and simulate an epoch, or a prediction, with the fewest intervals for each worker, a power of two, that fit the devices' memory."""
    num_intervals = 1
    while True:
        cut = Cut.of(graph, ranges, num_intervals)
        try:
            # Rows on their way take memory beside what the workers plan with.
            workers = [
                planned(job, part, DEVICE_BYTES - job.travelling_bytes(part), placement) for part in cut.parts
            ]
            break
        except BudgetError:
            if num_intervals >= MOST_INTERVALS:
                raise
            num_intervals *= 2
    plan, origins = joined(workers, cut, budget_bytes=DEVICE_BYTES, parameter_bytes=job.parameter_bytes)
    verify(plan)
    works = [StepWork(each.schedule) for each in workers]
    step_s = {step: works[rank].of(origin).seconds(machine) for step, (rank, origin) in origins.items()}
    timeline = simulate(plan, step_s.__getitem__, with_rings(machine))
    return Epoch(timeline=timeline, num_intervals=num_intervals, step_s=step_s, origins=origins)


def planned(job: Job, part: Share, budget_bytes: int, placement: PlacementPolicy) -> Planned:
    """The plan of a worker within a budget."""
    intervals = part.intervals
    found = plan_epoch(
        job.program,
        job.hops(part),
        intervals,
        budget_bytes,
        gradients=job.gradients,
        trains=job.trains,
        folded=job.trains,
        beside=FILES,
        staying=(),
    )
    return found if placement is place else replaced(found, placement, ahead=True)


def learned_ranges(job: Job, machine: Machine, graph: Generated, num_workers: int) -> tuple[int, ...]:
    """Ranges of equal seconds by a cost model that learns from simulated epochs, which begin with equal edges."""
    return equal_seconds(learned_costs(job, machine, graph, num_workers)[0], job, graph, num_workers)


def learned_costs(job: Job, machine: Machine, graph: Generated, num_workers: int) -> tuple[CostModel, CostModel]:
    """What simulated epochs teach: a cost model of an epoch, by which their parts are cut, and one of their forward steps."""
    ranges = graph.ranges(num_workers)
    features = _features(job, graph)
    model, forward = CostModel(), CostModel()
    for _ in range(LEARNING_EPOCHS):
        epoch = simulated(job, machine, graph, ranges)
        model = model.updated(_measured(epoch, features, _operations(job), ranges))
        forward = forward.updated(_measured(epoch, features, _operations(job), ranges, FORWARD))
        ranges = equal_seconds(model, job, graph, num_workers)
    return model, forward


def equal_seconds(model: CostModel, job: Job, graph: Generated, num_workers: int) -> tuple[int, ...]:
    """Ranges of equal seconds of a graph, which may be another one than the model learned from."""
    costs = model.part_costs(_features(job, graph), _operations(job))
    return balanced_bounds(costs, model.speeds_of(num_workers))


def _operations(job: Job) -> dict[str, int]:
    return {"edges": max(1, job.exchanged_row_bytes), "vertices": 0}


def _features(job: Job, graph: Generated) -> CostFeatures:
    return count_cost_features(graph.topology, [_operations(job)["edges"]], device="cuda")


def _measured(
    epoch: Epoch,
    features: CostFeatures,
    operations: Mapping[str, int],
    ranges: Sequence[int],
    kinds: Collection[StepKind] = get_args(StepKind),
) -> list[Measurement]:
    """The seconds of each worker's steps over edges, and of its other steps; of ``kinds`` of steps alone."""
    seconds: defaultdict[tuple[int, str], float] = defaultdict(float)
    for step, (rank, _) in epoch.origins.items():
        if step.kind not in kinds:
            continue
        seconds[rank, "edges" if step.kind in ("gather", "gather_grad") else "vertices"] += epoch.step_s[step]
    return [
        Measurement(
            kind=kind,
            worker=rank,
            features=features.of_part(ranges[rank], ranges[rank + 1], operations[kind]).tolist(),
            seconds=each,
        )
        for (rank, kind), each in seconds.items()
    ]
