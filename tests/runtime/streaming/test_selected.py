"""Chunks that have rows picked for them have the numbers of a dense run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sagann.graph import relabel
from sagann.nn import build_model
from sagann.nn.zoo import ModelConfig
from sagann.partition import vertex_order
from sagann.plan import equal_vertices
from sagann.plan.selection import ALWAYS, NEVER, Select
from sagann.plan.steps import Move, Plan
from sagann.plan.sweeps import Traversal
from sagann.runtime.streaming.stream import foretell, stream
from sagann.storage import open_graph, save_graph
from tests.graphs import labelled_graph
from tests.runtime.streams import WIDE, assert_all_close, assert_runs_right, dense, tight, zoo_model
from tests.tolerances import assert_close
from tests.zoo import DISTINCT


def picked(plan: Plan) -> set[tuple[str, str]]:
    """Kinds of blocks of which rows are loaded, and the forms of the chunks that need them."""
    loads = (each.block for each in plan.operations if isinstance(each, Move) and each.kind == "load")
    return {(block.kind, block.needed_by.name) for block in loads if block.needed_by is not None}


@pytest.mark.parametrize("name", DISTINCT)
@pytest.mark.parametrize(
    ("count", "traversal", "on_disk"), [(2, None, False), (3, WIDE, True), (7, None, False)], ids=["2", "3", "7"]
)
def test_every_model_of_the_zoo(
    name: str, count: int, traversal: Traversal | None, on_disk: bool, tmp_path: Path
) -> None:
    model, hops, x = zoo_model(name, layers=3)
    expected, upstream = dense(model, hops, x.requires_grad_())
    bounds, spill = equal_vertices(len(x), count), tmp_path if on_disk else None
    streamed = tight(model, hops, x, bounds=bounds, spill=spill, selection=ALWAYS, traversal=traversal)
    assert len(picked(streamed.plan(x).plan)) >= 2
    assert_runs_right(streamed, x, expected, upstream)


def test_picked_rows_change_no_bit_and_an_order_only_the_order() -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gated-gcn", hidden=8, layers=2, dropout=0.0), graph)
    graph = model.prepare(graph)
    order = vertex_order(graph, "metis", num_parts=6)
    budget = 24 << 10
    results = []
    for which, select in ((graph, "never"), (graph, "always"), (relabel(graph, order), "always")):
        streamed = stream(model, which, budget_bytes=budget, num_intervals=4, select=select)  # type: ignore[arg-type]
        assert bool(picked(streamed.plan(which.features).plan)) == (select == "always")
        out = streamed(which.features)
        loss = nn.functional.cross_entropy(out, which.labels)
        results.append((out, *torch.autograd.grad(loss, list(model.parameters()))))
    whole, rows, reordered = results
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(rows, whole, strict=True))
    assert_close(reordered[0], whole[0][order])
    assert_all_close(reordered[1:], whole[1:])


def test_rows_of_mapped_features_are_read_from_their_file(tmp_path: Path) -> None:
    save_graph(labelled_graph(), tmp_path / "graph")
    graph = open_graph(tmp_path / "graph")
    model = build_model(ModelConfig(model="gated-gcn", hidden=8, layers=2, dropout=0.0), graph)
    graph = model.prepare(graph)
    streamed = stream(model, graph, budget_bytes=24 << 10, num_intervals=4, select="always")
    with torch.no_grad():
        plan = streamed.plan(graph.features).plan
        loads = (each.block for each in plan.operations if isinstance(each, Move) and each.kind == "load")
        assert any(block.name == "x" and block.needed_by is not None for block in loads)
        assert_close(streamed(graph.features), model(graph.hops(2), graph.features))


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_foretold_is_what_is_planned(tmp_path: Path, *, on_disk: bool) -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model="sage", hidden=8, layers=2, dropout=0.0), graph)
    graph = model.prepare(graph)
    choices: tuple[Select, ...] = ("always", "auto")
    for select in choices:
        foretold = foretell(model, graph, budget_bytes=16 << 10, select=select, on_disk=on_disk)
        spill = tmp_path if on_disk else None
        streamed = stream(model, graph, budget_bytes=16 << 10, select=select, spill=spill)
        assert streamed.selection.is_forced == (select == "always")
        # Nothing is picked from rows that are read undivided.
        assert (streamed.selection == NEVER) == (select == "auto")
        assert streamed.plan(graph.features, folded=True).plan == foretold.plan
