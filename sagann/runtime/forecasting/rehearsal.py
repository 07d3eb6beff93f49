"""Rehearsal: a model's steps timed on a few of a graph's intervals, so that a forecast need not trust rates alone.

What a step takes for its work differs from kernel to kernel: widths, degrees and operators matter. It differs little from
chunk to chunk. So the steps of a small part are timed, and each kind of step gets the factor by which it takes longer than
the machine's rates say.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2: times of sub-chunks are profiled and used in later iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

import torch
from torch import nn

from sagann.graph.feature_store import Features
from sagann.graph.graph import Graph
from sagann.graph.subgraph import subgraph
from sagann.plan.epoch import Planned
from sagann.plan.intervals import sizes
from sagann.plan.machine import Machine
from sagann.plan.residency import BudgetError
from sagann.plan.steps import Plan, Step, StepKind
from sagann.plan.work import StepWork
from sagann.runtime.device.backend import backend_of
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga.hops import count_hops

MOST_EDGES = 4_000_000
"Of the part that is rehearsed, where more would take too long or too much."
_LONGEST_S = 1.0
"More are rehearsed where an epoch of the part takes no longer, by the machine's rates;"
_MOST_QUICK_EDGES = 8 * MOST_EDGES
"but no more than so many, which are cut anew;"
_COPIED_BYTES = 256 << 20
"and, unless it is the whole graph, no more vertices than have so many bytes of features, which are copied."
_EPOCHS = 3

Key = tuple[StepKind, int, int]
"Kind, number and part of a step."
Factors = Mapping[Key, float]
"How many times as long as the machine's rates say."


def key_of(step: Step) -> Key:
    """What steps have in common that run the same kernels."""
    return step.kind, step.number, step.part


def rehearse(model: nn.Module, graph: Graph, planned: Planned, machine: Machine) -> Factors:
    """Time the steps of an epoch on the first two intervals of a plan, or a part of them.

    The model's parameters, their gradients and PyTorch's random numbers stay as they are.

    Args:
        model: of the plan.
        graph: of the plan.
        planned: an epoch.
        machine: whose rates are corrected.
    """
    bounds = _part(graph, planned.plan, _quick_edges(graph, planned, machine))
    part = graph if bounds[-1] == graph.num_vertices else subgraph(graph, torch.arange(bounds[-1], device="cpu"))
    modes = {module: module.training for module in model.modules()}
    assert part.features is not None
    times: defaultdict[Key, list[float]] = defaultdict(list)
    try:
        streamed = _streamed(model.train(), part, bounds, planned.plan.budget_bytes)
        with torch.random.fork_rng(devices=[]):
            for epoch in range(_EPOCHS + 1):
                streamed.timeline = recorder = Recorder()
                _run(streamed, part.features)
                plan = streamed.plan(part.features, folded=True)
                # The first compiles.
                for key, seconds in _by_key(plan.plan, recorder).items() if epoch else ():
                    times[key].append(seconds)
    finally:
        for module, mode in modes.items():
            module.training = mode
    work = work_of(plan)
    expected: defaultdict[Key, float] = defaultdict(float)
    for step in _steps(plan.plan):
        expected[key_of(step)] += work.of(step).seconds(machine)
    return {key: median(found) / expected[key] for key, found in times.items()}


def _streamed(model: nn.Module, part: Graph, bounds: tuple[int, ...], budget_bytes: int) -> StreamedModel:
    hops = list(part.hops(count_hops(model)))
    # Where the model lies is where it is going to run.
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    backend = backend_of(device)
    streamed = StreamedModel(model, hops, bounds, budget_bytes=budget_bytes, backend=backend)
    assert part.features is not None
    try:
        streamed.plan(part.features, folded=True)
    except BudgetError:
        # Fewer vertices may have denser chunks. What steps take by themselves does not depend on the budget.
        return StreamedModel(model, hops, bounds, backend=backend)
    return streamed


def _quick_edges(graph: Graph, planned: Planned, machine: Machine) -> int:
    """How many edges of the graph are rehearsed at most."""
    work = work_of(planned)
    epoch_s = sum(work.of(step).seconds(machine) for step in _steps(planned.plan))
    return max(MOST_EDGES, min(_MOST_QUICK_EDGES, int(graph.num_edges * min(1.0, _LONGEST_S / epoch_s))))


def work_of(planned: Planned) -> StepWork:
    """What each step of a plan computes."""
    return StepWork(planned.program, planned.schedule, sizes(planned.plan.bounds))


def _part(graph: Graph, plan: Plan, quick_edges: int) -> tuple[int, ...]:
    """The bounds of the first two intervals that are not empty, or the one there is, smaller where they have too many edges."""
    bounds = sorted(set(plan.bounds))[:3]
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


def _steps(plan: Plan) -> list[Step]:
    return [each for each in plan.operations if isinstance(each, Step) and each.kind != "return"]


def _by_key(plan: Plan, recorder: Recorder) -> dict[Key, float]:
    found: defaultdict[Key, float] = defaultdict(float)
    for step, span in zip(_steps(plan), recorder.of("compute"), strict=True):
        found[key_of(step)] += span.seconds
    return dict(found)
