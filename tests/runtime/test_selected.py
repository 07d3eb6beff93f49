"""Chunks that have rows picked for them have the numbers of a dense run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sagann.graph import Topology
from sagann.nn import build_model
from sagann.nn.zoo import MODELS, ModelConfig
from sagann.plan import equal_vertices
from sagann.plan.fit import needed_bytes
from sagann.plan.schedule import Schedule
from sagann.plan.selection import ALWAYS
from sagann.plan.steps import Move, Plan
from sagann.runtime.planning import hop_sizes
from sagann.runtime.streamed import StreamedModel
from tests.graphs import labelled_graph
from tests.runtime.test_streamed import dense, in_double
from tests.tolerances import assert_close, largest


def tight(model: nn.Module, hops: list[Topology], x: torch.Tensor, count: int, spill: Path | None) -> StreamedModel:
    """The model streamed with all rows picked, and no more than the hungriest step takes."""
    bounds = equal_vertices(len(x), count)
    program, roomy, _ = StreamedModel(model, hops, bounds).plan(x)
    sizes = hop_sizes(hops, bounds, ALWAYS)
    schedule = Schedule(program, sizes, bounds, gradients=roomy.gradients, selects=True)
    budget = needed_bytes([*schedule.constants(), *schedule.epoch()], schedule.sizes.of)
    return StreamedModel(model, hops, bounds, budget_bytes=budget, spill=spill, selection=ALWAYS)


def picked(plan: Plan) -> set[tuple[str, str]]:
    """Kinds of blocks of which rows are loaded, and the forms of the chunks that need them."""
    loads = (each.block for each in plan.operations if isinstance(each, Move) and each.kind == "load")
    return {(block.kind, block.needed_by.name) for block in loads if block.needed_by is not None}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
@pytest.mark.parametrize(("count", "on_disk"), [(2, False), (3, True), (7, False)])
def test_every_model_of_the_zoo(name: str, count: int, on_disk: bool, tmp_path: Path) -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model=name, hidden=8, heads=2, layers=3, dropout=0.0), graph).double()
    graph = in_double(model.prepare(graph))
    assert graph.features is not None
    x = graph.features.double().requires_grad_()
    hops = list(graph.hops(model.num_hops))
    expected, upstream = dense(model, hops, x)
    streamed = tight(model, hops, x, count, tmp_path if on_disk else None)
    assert len(picked(streamed.plan(x).plan)) >= 2
    out = streamed(x)
    found = torch.autograd.grad(out, [x, *model.parameters()], upstream, materialize_grads=True)
    for ours, theirs in zip((out, *found), expected, strict=True):
        assert_close(ours, theirs, scale=largest(*expected))
