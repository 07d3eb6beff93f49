"""BatchNorm inside a layer: equal to plain PyTorch while it is trained and in evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann import GNN, SagaLayer
from sagann.errors import LayerError
from sagann.graph import Topology
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga.engine import using_engine
from sagann.train import TrainConfig, Trainer
from tests.graphs import labelled_graph
from tests.tolerances import assert_close


class OfEdges(SagaLayer):
    """A message is a map of both ends, normalised over all edges."""

    accumulator = "mean"

    def __init__(self, in_dim: int = 8, out_dim: int = 5) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(2 * in_dim, out_dim), nn.BatchNorm1d(out_dim)

    def apply_edge(self, edge: Any) -> Tensor:
        return torch.relu(self.norm(self.linear(torch.cat([edge.src, edge.dst], dim=1))))


class OfVertices(SagaLayer):
    """What a vertex has gathered is mapped, and normalised over all vertices."""

    def __init__(self, in_dim: int = 8, out_dim: int = 5) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(in_dim, out_dim), nn.BatchNorm1d(out_dim)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.norm(self.linear(accum))


@pytest.mark.parametrize("kind", [OfEdges, OfVertices])
def test_it_is_trained_on_mini_batches_and_refused_where_they_are_divided(kind: type[OfEdges | OfVertices]) -> None:
    config = TrainConfig(epochs=3, sample=(4, 4), batch_size=6)
    model = GNN([kind(8, 16), kind(16, 3)])
    assert Trainer(model, labelled_graph(), config, progress=False).fit().epochs == 3
    divided = replace(config, devices="host:1,accelerator:1")
    with pytest.raises(LayerError, match="mini-batches are divided among devices"):
        Trainer(model, labelled_graph(), divided, progress=False).fit()


@pytest.mark.parametrize("kind", [OfEdges, OfVertices])
def test_one_row_is_refused_by_the_layers_name(kind: type[OfEdges | OfVertices]) -> None:
    one = torch.tensor([0])
    topology = Topology.from_coo(src=one, dst=one, num_src=1)
    with pytest.raises(LayerError, match=f"needs two rows at least.*{kind.__name__}"):
        kind()(topology, torch.randn(1, 8))


def test_a_batch_norm_without_running_means_is_refused() -> None:
    layer = OfVertices()
    layer.norm = nn.BatchNorm1d(5, track_running_stats=False)
    graph = labelled_graph()
    with pytest.raises(LayerError, match="native_batch_norm"):
        layer(graph.topology, graph.features)


def gathered(topology: Topology, x: Tensor) -> Tensor:
    return x.new_zeros(topology.num_dst, x.shape[1]).index_add(
        0, topology.edge_dst().long(), x[topology.indices.long()]
    )


class Beside(SagaLayer):
    """Its own forward maps and normalises what is gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.after = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))

    def forward(self, topology: Topology, x: Tensor) -> Tensor:  # type: ignore[override]
        out: Tensor = self.after(super().forward(topology, x))
        return out


def test_modules_that_no_function_calls_do_not_stop_fusion() -> None:
    graph, calls = labelled_graph(), []
    layer, engine = Beside(), CompiledEngine()
    x = graph.features.float()  # type: ignore[union-attr]
    with using_engine(engine):
        assert engine.why_not(layer, x) == ""
        handle = layer.after[0].register_forward_hook(lambda *_: calls.append(1))
        expected = layer.after(gathered(graph.topology, x))
        calls.clear()
        assert_close(layer(graph.topology, x), expected)
        assert engine.why_not(layer, x) == ""
        assert calls == [1]
        handle.remove()
    # A function that calls them runs as it is written, and calls the hooks.
    layer.apply_vertex = lambda vertex, accum: layer.after(accum)  # type: ignore[method-assign]
    assert "a BatchNorm that is trained" in engine.why_not(layer, x)
    layer.eval()
    assert engine.why_not(layer, x) == ""
    layer.after[0].register_forward_hook(lambda *_: calls.append(1))
    assert engine.why_not(layer, x) == "a module inside it has hooks"
