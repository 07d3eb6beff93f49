"""Forecast: the seconds and bytes of an epoch, before the epoch runs.

The seconds that a step takes for its work differ from kernel to kernel, but little from chunk to chunk. So a rehearsal times the steps of a
small part of the graph, and each kind of step gets a factor: its measured seconds over the seconds by the machine's rates
(Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2, profile sub-chunks).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import nn

from sagann.free_space import memory
from sagann.graph.feature_store import Features
from sagann.graph.graph import Graph
from sagann.graph.renumber import subgraph
from sagann.graph.rows import is_sparse
from sagann.plan.epoch import Planned
from sagann.plan.intervals import PartIntervals
from sagann.plan.machine import Machine
from sagann.plan.residency import BudgetError
from sagann.plan.simulate import Tier, simulate
from sagann.plan.steps import Plan, Step, StepKind
from sagann.plan.timeline import Timeline
from sagann.plan.work import StepWork
from sagann.runtime.backend import backend_of
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga.layer import count_hops


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """An epoch as it is expected to run."""

    planned: Planned
    machine: Machine
    timeline: Timeline
    "Steps and copies, with their times."
    tier: Tier
    "Tier in which blocks that are not in use are assumed to lie."
    rehearsed: bool
    "Whether steps were timed here. If not, only the machine's rates are known."


def forecast(
    planned: Planned,
    machine: Machine,
    *,
    on_disk: bool,
    rehearsal: Rehearsal | None = None,
    features: Features | None = None,
) -> Forecast:
    """Simulate an epoch whose blocks lie in files or in memory.

    With a rehearsal, the plan's model and graph, steps are first timed on this machine; otherwise the forecast uses the machine's rates
    alone, and the non-zeros of sparse ``features``.
    """
    # The tier depends on free memory, so it is asked for before a rehearsal, which takes memory and keeps some.
    tier = _tier(planned, machine, on_disk=on_disk, is_at_hand=rehearsal is not None)
    work = work_of(planned, features if rehearsal is None else rehearsal[1].features)
    factors: Factors = {} if rehearsal is None else rehearse(*rehearsal, planned, machine)

    def step_s(step: Step) -> float:
        return work.of(step).seconds(machine) * factors.get(_key_of(step), 1.0)

    timeline = simulate(planned.plan, step_s, machine, tier=tier)
    return Forecast(planned=planned, machine=machine, timeline=timeline, tier=tier, rehearsed=rehearsal is not None)


def _tier(planned: Planned, machine: Machine, *, on_disk: bool, is_at_hand: bool) -> Tier:
    """The tier of blocks that are not in use. Files are cached if memory has room for all of them beside the budget.

    The free memory of a machine that is not at hand is unknown, so its files are taken to lie on the disk.
    """
    if not on_disk:
        return "memory"
    schedule, plan = planned.schedule, planned.plan
    # Sparse features are read where they lie.
    features = 0 if planned.program.x_is_sparse else plan.bounds[-1] * schedule.sizes.row_bytes("x")
    files = schedule.edge_bytes + schedule.constant_bytes + plan.spilled_bytes + features
    # The budget of a machine with a device is of the device's memory.
    beside = plan.budget_bytes if machine.host_to_device_bytes is None else 0
    free = memory().usable_bytes if is_at_hand else None
    return "file cache" if free is not None and files + beside <= free else "disk"


MOST_EDGES = 4_000_000
"Most edges of the part that is rehearsed, unless an epoch of a larger part is quick."
_LONGEST_S = 1.0
# An epoch that takes no longer by the machine's rates is quick. Its part has at most so many edges, because they are cut anew.
_MOST_QUICK_EDGES = 8 * MOST_EDGES
# A part of a graph has no more vertices than have so many bytes of features, because they are copied.
_COPIED_BYTES = 256 << 20
_EPOCHS = 3

Rehearsal = tuple[nn.Module, Graph]
"A model and its graph, both as they were planned."
Key = tuple[StepKind, int, int]
"Kind, number and part of a step. Steps with the same key run the same kernels."
Factors = Mapping[Key, float]
"Measured seconds of steps over their seconds by the machine's rates."


def rehearse(model: nn.Module, graph: Graph, planned: Planned, machine: Machine) -> Factors:
    """Time the steps of an epoch on two intervals as large as a plan's mean one, or on a part of them.

    The model's parameters, their gradients and PyTorch's random numbers stay as they are.
    """
    bounds = _part(graph, planned.plan, _quick_edges(graph, planned, machine))
    part = graph if bounds[-1] == graph.num_vertices else subgraph(graph, torch.arange(bounds[-1], device="cpu"))
    modes = {module: module.training for module in model.modules()}
    assert part.features is not None
    times: defaultdict[Key, list[float]] = defaultdict(list)
    try:
        streamed = _streamed(model.train(), part, part.features, bounds, planned)
        rehearsed = streamed.plan(part.features, folded=True)
        with torch.random.fork_rng(devices=[]):
            for epoch in range(_EPOCHS + 1):
                streamed.timeline = recorder = Recorder()
                _run(streamed, part.features)
                # The first epoch compiles.
                measured = [span.seconds for span in recorder.of("compute")]
                for key, seconds in _by_key(rehearsed.plan, measured).items() if epoch else ():
                    times[key].append(seconds)
    finally:
        for module, mode in modes.items():
            module.training = mode
    work = work_of(rehearsed, part.features)
    expected = _by_key(rehearsed.plan, [work.of(step).seconds(machine) for step in _steps(rehearsed.plan)])
    return {key: median(found) / expected[key] for key, found in times.items()}


def _streamed(
    model: nn.Module, part: Graph, features: Features, bounds: tuple[int, ...], planned: Planned
) -> StreamedModel:
    hops = list(part.hops(count_hops(model)))
    # The model lies on the device that will run it.
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    backend = backend_of(device)
    # With the passes of the plan, whose chunks may be cut at one end alone.
    like = planned.schedule.part
    intervals = replace(PartIntervals.of_graph(bounds), undivided=like.undivided, slice_lanes=like.slice_lanes)
    budget_bytes = planned.plan.budget_bytes
    streamed = StreamedModel(model, hops, bounds, budget_bytes=budget_bytes, backend=backend, part=intervals)
    try:
        streamed.plan(features, folded=True)
    except BudgetError:
        # Fewer vertices may have denser chunks. The seconds of a step do not depend on the budget.
        return StreamedModel(model, hops, bounds, backend=backend, part=intervals)
    return streamed


def _quick_edges(graph: Graph, planned: Planned, machine: Machine) -> int:
    work = work_of(planned, graph.features)
    epoch_s = sum(work.of(step).seconds(machine) for step in _steps(planned.plan))
    return max(MOST_EDGES, min(_MOST_QUICK_EDGES, int(graph.num_edges * min(1.0, _LONGEST_S / epoch_s))))


def _part(graph: Graph, plan: Plan, quick_edges: int) -> tuple[int, ...]:
    """Bounds of two intervals of the plan's mean size, or of its only one, scaled down if they have too many edges."""
    size = math.ceil(graph.num_vertices / (len(set(plan.bounds)) - 1))
    bounds = sorted({min(number * size, graph.num_vertices) for number in range(3)})
    offsets = graph.topology.indptr[: bounds[-1] + 1].contiguous()

    def most_vertices(most_edges: int) -> int:
        return min(int(torch.searchsorted(offsets, most_edges, right=True)), bounds[-1])

    end = most_vertices(quick_edges)
    if end < graph.num_vertices:
        assert graph.features is not None
        copied = _COPIED_BYTES // max(1, graph.num_features * graph.features.dtype.itemsize)
        end = min(end, max(most_vertices(MOST_EDGES), copied))
    end = max(len(bounds) - 1, end)
    middle = [min(max(1, bound * end // bounds[-1]), end - 1) for bound in bounds[1:-1]]
    return (0, *middle, end)


def _run(streamed: StreamedModel, x: Features) -> None:
    trained = [parameter for parameter in streamed.model.parameters() if parameter.requires_grad]
    loss = streamed.loss(x, lambda rows, _: rows.float().logsumexp(-1).sum())
    if loss.requires_grad:
        torch.autograd.grad(loss, trained, allow_unused=True)


def work_of(planned: Planned, features: Features | None = None) -> StepWork:
    """The work of a plan's steps; where ``features`` are sparse, by their non-zeros."""
    nonzeros = None
    if is_sparse(features):
        nonzeros = features.values().numel() / max(1, len(features))
    return StepWork(planned.schedule, nonzeros)


def _steps(plan: Plan) -> list[Step]:
    return [each for each in plan.operations if isinstance(each, Step) and each.kind != "return"]


def _key_of(step: Step) -> Key:
    return step.kind, step.number, step.backward_pass


def _by_key(plan: Plan, seconds: Sequence[float]) -> dict[Key, float]:
    found: defaultdict[Key, float] = defaultdict(float)
    for step, step_s in zip(_steps(plan), seconds, strict=True):
        found[_key_of(step)] += step_s
    return found
