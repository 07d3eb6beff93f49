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

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


class OfVertices(SagaLayer):
    """What a vertex has gathered is mapped, and normalised over all vertices."""

    accumulator = "sum"

    def __init__(self, in_dim: int = 8, out_dim: int = 5) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(in_dim, out_dim), nn.BatchNorm1d(out_dim)

    def apply_edge(self, edge: Any) -> Tensor:
        return edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.norm(self.linear(accum))


def plain(layer: OfEdges | OfVertices, topology: Topology, x: Tensor) -> Tensor:
    src, dst = topology.indices.long(), topology.edge_dst().long()
    rows = x[src]
    if isinstance(layer, OfEdges):
        rows = torch.relu(layer.norm(layer.linear(torch.cat([x[src], x[dst]], dim=1))))
    total = rows.new_zeros(topology.num_dst, rows.shape[1]).index_add(0, dst, rows)
    if isinstance(layer, OfEdges):
        return total / torch.bincount(dst, minlength=topology.num_dst).clamp(min=1).unsqueeze(1)
    return layer.norm(layer.linear(total))


@pytest.mark.parametrize("kind", [OfEdges, OfVertices])
def test_it_is_that_of_plain_pytorch(kind: type[OfEdges | OfVertices]) -> None:
    graph = labelled_graph()
    torch.manual_seed(0)
    layer, twin = kind().double(), kind().double()
    twin.load_state_dict(layer.state_dict())
    x = graph.features.double()  # type: ignore[union-attr]
    engine = CompiledEngine()
    with using_engine(engine):
        for _ in range(3):
            ours, theirs = layer(graph.topology, x), plain(twin, graph.topology, x)
            assert_close(ours, theirs)
            gradients = [
                torch.autograd.grad(found.square().sum(), list(of.parameters()))
                for found, of in ((ours, layer), (theirs, twin))
            ]
            for one, other in zip(*gradients, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
        # Running means are moved once for each pass.
        for (name, one), (_, other) in zip(layer.named_buffers(), twin.named_buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12, msg=name)
        assert "BatchNorm" in engine.why_not(layer, x)
        layer.eval()
        twin.eval()
        assert_close(layer(graph.topology, x), plain(twin, graph.topology, x))
        assert engine.why_not(layer, x) == ""


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
