"""What tests of streamed models compare: dense runs, and runs with as little memory as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from sagann.graph import Graph, Topology
from sagann.nn import ModelConfig, build_model
from sagann.plan.fit import hop_sizes
from sagann.plan.gradients import undivided_of
from sagann.plan.intervals import PartIntervals
from sagann.plan.schedule import Schedule
from sagann.plan.selection import NEVER, Selection
from sagann.plan.sizes import BlockSizes, needed_bytes
from sagann.plan.slices import in_slices
from sagann.plan.sweeps import PassKey, Traversal
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import NaiveEngine, using_engine
from tests.graphs import labelled_graph
from tests.tolerances import assert_close, largest


def in_double(graph: Graph) -> Graph:
    data = {
        name: rows.double() if rows.is_floating_point() else rows for name, rows in graph.topology.edge_data.items()
    }
    return graph.with_topology(graph.topology.with_edge_data(**data))


def dense(model: nn.Module, hops: Sequence[Topology], x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The naive engine's result and gradients, and the upstream gradient."""
    with using_engine(NaiveEngine()):
        out = model(hops, x)
    upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    leaves = [x, *model.parameters()]
    return [out, *torch.autograd.grad(out, leaves, upstream, materialize_grads=True)], upstream


WIDE = Traversal(
    widths={
        PassKey(kind, number, each): 7
        for kind in ("gather", "gather_grad")
        for number in range(4)
        for each in range(3)
    }
)
"Strips of all columns: where memory is tight, states are stored and loaded between their chunks."


def partial_loss(z: Tensor, vertices: slice) -> Tensor:
    return (z.square() * (1 + torch.arange(vertices.start, vertices.stop, dtype=z.dtype)[:, None])).sum()


def tight(
    model: nn.Module,
    hops: Sequence[Topology],
    x: Tensor,
    *,
    bounds: Sequence[int],
    spill: Path | None = None,
    selection: Selection = NEVER,
    traversal: Traversal | None = None,
    is_square: bool = True,
    slice_lanes: int = 0,
) -> StreamedModel:
    """The model streamed with no more than the hungriest step takes; chunks are cut at both ends, or what passes read at random is not, in
    slices of so many lanes."""
    program, roomy, _ = StreamedModel(model, hops, bounds).plan(x)
    square, gradients = PartIntervals.of_graph(bounds), roomy.gradients
    part = square if is_square else replace(square, undivided=undivided_of(program, gradients))
    part = cut = replace(part, slice_lanes=slice_lanes)
    if slice_lanes:
        program, gradients, cut = in_slices(program, gradients, part)
    sizes = hop_sizes(program, hops, part, selection)
    of_epochs = BlockSizes(program, sizes, cut, gradients if is_square else gradients.recomputing())
    schedules = [
        Schedule(of_epochs, folded=folded, traversal=traversal, selects=selection != NEVER)
        for folded in (False, True)
    ]
    # What is the same in every epoch is computed over chunks that are cut at both ends.
    once = Schedule(BlockSizes(program, sizes, square, gradients), selects=selection != NEVER)
    runs = [(list(each.epoch()), each) for each in schedules] + [(list(once.constants()), once)]
    needed = [needed_bytes(steps, schedule.sizes.of) for steps, schedule in runs]
    options = {"budget_bytes": max(needed), "spill": spill, "traversal": traversal, "selection": selection}
    return StreamedModel(model, hops, bounds, part=part, **options)


def assert_all_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, scale=largest(*expected))


def assert_runs_right(streamed: StreamedModel, x: Tensor, expected: Sequence[Tensor], upstream: Tensor) -> None:
    out = streamed(x)
    leaves = [x, *streamed.model.parameters()]
    assert_all_close([out, *torch.autograd.grad(out, leaves, upstream, materialize_grads=True)], expected)


def zoo_model(
    name: str, *, layers: int = 2, num_vertices: int = 53, types: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, list[Topology], Tensor]:
    """A model of the zoo, its hops and features, in float64 where no other type is asked for."""
    graph = labelled_graph(num_vertices, 401 if num_vertices == 53 else 900, types=types)
    config = ModelConfig(model=name, hidden=8, heads=2, layers=layers, dropout=0.0)
    model = build_model(config, graph).to(dtype)
    graph = model.prepare(graph)
    graph = in_double(graph) if dtype == torch.float64 else graph
    return model, list(graph.hops(model.num_hops)), graph.features.to(dtype)
