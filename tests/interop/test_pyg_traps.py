"""Traps: models and graphs with which numbers would be wrong unnoticed."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.interop import from_pyg_model
from sagann.train import load_run
from tests.graphs import edge_index
from tests.interop.pyg_models import (
    CLASSES,
    WIDTH,
    Plain,
    Two,
    Weighted,
    assert_as_in_pyg,
    logits_of,
    prepared,
    pyg_graph,
    rows_in_pyg,
    sage,
    seeded,
    small,
    trainer_of,
)
from tests.tolerances import assert_close
from tests.train.runs import assert_same_bits, weights_of


class PerhapsWeighted(Plain):
    """Weights count where there are some."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Any:
        return self.conv(x, edge_index, edge_weight)


def test_a_graph_with_other_edge_data_changes_nothing_for_the_training_graph() -> None:
    graph, without, more = small("weight"), small(), small("weight", "attr")
    model = seeded(lambda: PerhapsWeighted(pyg.GraphConv(WIDTH, CLASSES)))
    trainer = trainer_of(model, graph)
    expected = rows_in_pyg(model, graph, edge_weight=graph.topology.edge_data["weight"])
    with pytest.raises(
        InputError, match=r"lacks edge data that the model takes: weight; it has none .*graph 'tiny'"
    ):
        trainer.evaluate(without)
    assert_close(logits_of(trainer, more), rows_in_pyg(model, more, edge_weight=more.topology.edge_data["weight"]))
    assert_close(logits_of(trainer), expected)
    # What has no weights in training has none later.
    trainer = trainer_of(model, without)
    expected = rows_in_pyg(model, without)
    assert_close(logits_of(trainer), expected)
    assert_close(logits_of(trainer, more), rows_in_pyg(model, more))
    assert_close(logits_of(trainer), expected)


class Asking(Plain):
    """Asks for more than its graph has."""

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, pos: Tensor | None = None
    ) -> Any:
        return self.conv(x, edge_index, edge_weight)


@pytest.mark.parametrize(
    ("build", "data", "expected"),
    [
        (lambda: Asking(pyg.GraphConv(WIDTH, CLASSES)), "attr", r"Asking is trained without edge_weight, pos, .* Edge data attr are passed to arguments called edge_attr"),
        (lambda: Asking(pyg.GraphConv(WIDTH, CLASSES)), "weight", r"without pos, which the graph has under no such name\.$"),
        (lambda: PerhapsWeighted(pyg.GraphConv(WIDTH, CLASSES)), "weight", ""),
        (lambda: pyg.GraphSAGE(WIDTH, WIDTH, 1, CLASSES), "", ""),
    ],
)  # fmt: skip
def test_what_a_model_asks_for_in_vain_is_named(
    build: Callable[[], nn.Module], data: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    trainer_of(build(), small(*data.split()))
    assert len(caplog.messages) == bool(expected)
    assert re.search(expected, "".join(caplog.messages))


class PerGraph(Two):
    """Normalises each graph by itself, where it is told which vertices make one up."""

    def __init__(self) -> None:
        super().__init__(pyg.SAGEConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, CLASSES))
        self.norm = pyg.GraphNorm(WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Any:
        return self.second(self.norm(self.first(x, edge_index), batch), edge_index)


class PerGraphOfData(PerGraph):
    def forward(self, data: Any) -> Any:
        return super().forward(data.x, data.edge_index, data.batch)


@pytest.mark.parametrize("kind", [PerGraph, PerGraphOfData])
def test_vertices_of_several_graphs_come_with_the_number_of_their_graph(kind: Callable[[], nn.Module]) -> None:
    ptr, alone = torch.tensor([0, 12, 20, 30]), small()
    batch = torch.repeat_interleave(torch.arange(3), ptr.diff())
    src, dst = edge_index(alone.topology)
    inside = batch[src] == batch[dst]
    topology = Topology.from_coo(src=src[inside], dst=dst[inside], num_src=30)
    graph, model = replace(alone, topology=topology, graph_ptr=ptr), seeded(kind).eval()
    expected = PerGraph.forward(model, graph.features, edge_index(graph.topology), batch)
    trainer = trainer_of(model, graph, epochs=1)
    assert_close(logits_of(trainer), expected.detach())
    assert_close(
        logits_of(trainer, alone), PerGraph.forward(model, alone.features, edge_index(alone.topology)).detach()
    )
    ours, *given = prepared(model, graph)
    assert_close(ours(*given, ptr), expected)
    with pytest.raises(InputError, match="not told which vertices make up a graph"):
        ours(*given)
    trainer.fit()
    for options in ({"sample": (2, 2)}, {"memory": "1MiB"}):
        with pytest.raises(InputError, match="takes batch runs on all graphs at once: 3 graphs"):
            trainer_of(seeded(kind), graph, **options).fit()


def test_a_layer_in_two_models_and_in_pyg_in_turn() -> None:
    graph = small()
    shared = seeded(lambda: pyg.SAGEConv(WIDTH, WIDTH))
    others = (pyg.SAGEConv(WIDTH, WIDTH), pyg.GraphConv(WIDTH, WIDTH))
    models = [from_pyg_model(Two(shared, other), graph) for other in others]
    for _ in range(2):
        for ours in models:
            expected = rows_in_pyg(ours.model, graph)
            assert_close(ours(ours.prepare(graph).hops(2), graph.features).detach(), expected)
            assert_close(ours.model(graph.features, edge_index(graph.topology)).detach(), expected)


def test_threads_use_one_model() -> None:
    graph = small()
    ours, *given = prepared(seeded(sage).eval(), graph)
    expected = ours(*given)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: ours(*given), range(16)):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_other_dtypes(dtype: torch.dtype) -> None:
    """The graph has float32 features and weights, or float64 ones."""
    for graph in (small("weight"), pyg_graph("weight")):
        model = seeded(lambda: Weighted(pyg.GCNConv(WIDTH, CLASSES))).to(dtype)
        trainer = trainer_of(model, graph)
        found = logits_of(trainer, graph)
        assert found.dtype == dtype
        wide, weight = copy.deepcopy(model).double(), graph.topology.edge_data["weight"]
        expected = wide(graph.features.double(), edge_index(graph.topology), weight.double())
        tolerance = 1e-6 if dtype == torch.float64 else 0.05
        assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max()
        trainer.fit()


def test_lazy_widths(tmp_path: Path) -> None:
    graph = small()

    def build() -> nn.Module:
        return Two(pyg.SAGEConv((-1, -1), WIDTH), pyg.GraphConv((-1, -1), CLASSES))

    model = build()
    trainer = trainer_of(model, graph, run_dir=tmp_path)
    # A bias that is made with the width, too.
    assert model.first.lin_l.bias.abs().max() < 1
    trainer.fit()
    assert_close(logits_of(trainer, graph), rows_in_pyg(model, graph))
    other = build()
    assert torch.equal(load_run(tmp_path, model=other, device="cpu").predict(graph), trainer.predict())
    assert_same_bits(weights_of(other), weights_of(model))


def test_other_names_of_the_edges() -> None:
    class Edges(Plain):
        def forward(self, x: Tensor, edges: Tensor) -> Any:
            return self.conv(x, edges)

    class Adjacency(Plain):
        def forward(self, x: Tensor, adj_t: Tensor) -> Any:
            return self.conv(x, edge_index=adj_t)

    for kind in (Edges, Adjacency):
        assert_as_in_pyg(seeded(lambda kind=kind: kind(pyg.SAGEConv(WIDTH, WIDTH))).double(), pyg_graph())


def test_a_layer_that_keeps_what_it_prepared_for_another_graph() -> None:
    graph = small()
    model = seeded(lambda: Plain(pyg.GCNConv(WIDTH, WIDTH, cached=True)))
    other = pyg_graph(num_vertices=50, dtype=torch.float32)
    kept = model(other.features, edge_index(other.topology))
    ours, *given = prepared(model, graph)
    fresh = seeded(lambda: Plain(pyg.GCNConv(WIDTH, WIDTH)))
    assert_close(ours(*given).detach(), rows_in_pyg(fresh, graph))
    # PyG finds what it kept.
    assert torch.equal(model(other.features, edge_index(other.topology)), kept)


def test_several_self_loops_of_a_vertex_all_count_and_pyg_keeps_one() -> None:
    topology = Topology.from_coo(src=torch.tensor([0, 0, 1]), dst=torch.tensor([0, 0, 0]), num_src=2)
    graph = Graph(topology=topology, features=torch.eye(2))
    model = Plain(pyg.GCNConv(2, 1, bias=False))
    with torch.no_grad():
        model.conv.lin.weight.copy_(torch.tensor([[1.0, 0.0]]))
        ours, *given = prepared(model, graph)
        rows = ours(*given)
        # Two loops and another edge: a degree of 3, of which loops make 2. PyG counts one loop, and a degree of 2.
        assert_close(rows[0], torch.tensor([2 / 3]))
        assert_close(model(torch.eye(2), edge_index(topology))[0], torch.tensor([1 / 2]))


def test_graphs_without_edges() -> None:
    graph = pyg_graph()
    none = torch.zeros(0, dtype=torch.int64)
    empty = replace(graph, topology=Topology.from_coo(src=none, dst=none, num_src=graph.num_vertices))
    for conv in (
        pyg.GATConv(WIDTH, WIDTH // 2, heads=2, add_self_loops=False),
        pyg.SAGEConv(WIDTH, WIDTH, aggr=["mean", "max", "std"]),
    ):
        assert_as_in_pyg(seeded(lambda conv=conv: Plain(conv)).double(), empty)
