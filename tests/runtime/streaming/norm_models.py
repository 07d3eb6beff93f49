"""Models with BatchNorms of vertices and of edges, and a graph for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import sagann
from sagann.graph import Topology
from sagann.nn import GAT, SAGE
from tests.graphs import labelled_graph
from tests.runtime.in_memory.test_batch_norm import OfEdges, OfVertices

NUM_TYPES = 3
WIDTH = 8


class Between(nn.Module):
    """BatchNorms between layers, as most models have them, with dropout and a residual connection."""

    num_hops = 3

    def __init__(self, in_dim: int, p: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SAGE(in_dim, WIDTH), SAGE(WIDTH, WIDTH), SAGE(WIDTH, 3)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, momentum=None)])
        self.dropout = nn.Dropout(p)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.layers[0](hops[0], x)))
        x = x + self.dropout(torch.relu(self.norms[1](self.layers[1](hops[1], x))))
        return self.layers[2](hops[2], x)


class OfAllKinds(nn.Module):
    """One norm of features and of the result, one of rows that are read without it too, and one inside a layer."""

    num_hops = 2

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.given = nn.BatchNorm1d(in_dim, affine=False)
        self.inner = OfVertices(in_dim, 6)
        self.middle = nn.BatchNorm1d(6, track_running_stats=False)
        self.last, self.out = GAT(12, 2, num_heads=2), nn.BatchNorm1d(4, eps=0.1)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        x = torch.tanh(self.inner(hops[0], self.given(x)))
        return self.out(self.last(hops[1], torch.cat([x, self.middle(x)], 1)))


class OfHeads(nn.Module):
    """A norm of rows with two dimensions, which is used twice."""

    num_hops = 1

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.layer, self.norm = SAGE(in_dim, 6), nn.BatchNorm1d(3)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        rows = self.layer(hops[0], x).view(-1, 3, 2)
        return self.norm(torch.exp(self.norm(rows))).flatten(1)


class Messages(sagann.SagaLayer):
    """A network of two norms on the edges, of both ends and of edge data, reduced in several ways."""

    accumulator = ("mean", "max", "std")
    edge_data = "weight"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * in_dim + 1, 5),
            nn.BatchNorm1d(5, affine=False, momentum=None),
            nn.ReLU(),
            nn.Linear(5, out_dim),
            nn.BatchNorm1d(out_dim, eps=0.1),
        )
        self.out = nn.Linear(3 * out_dim, out_dim)

    def apply_edge(self, edge: Any) -> Tensor:
        return torch.tanh(self.net(torch.cat([edge.src, edge.dst, edge.data[:, None]], 1)))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.out(accum)


class Heads(sagann.SagaLayer):
    """A norm of rows with two dimensions, twice; scores that are normalised, and weigh what is normalised again."""

    accumulator = "softmax"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear, self.norm, self.of_scores = nn.Linear(in_dim, 6), nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        self.out = nn.Linear(6, out_dim)

    def apply_edge(self, edge: Any) -> tuple[Tensor, Tensor]:
        rows = self.norm((self.linear(edge.src) - self.linear(edge.dst)).view(-1, 3, 2))
        rows = self.norm(torch.exp(0.1 * rows))
        return self.of_scores(rows.sum(2)), rows

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.out(accum.flatten(1))


class OfOneEnd(sagann.SagaLayer):
    """Norms of what depends on sources alone, on destinations alone and on edge data alone."""

    edge_data = "weight"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
        self.of_src, self.of_dst, self.of_data = (nn.BatchNorm1d(width) for width in (out_dim, out_dim, 1))
        self.of_input = nn.BatchNorm1d(in_dim, affine=False)

    def apply_edge(self, edge: Any) -> Tensor:
        gate = torch.sigmoid(self.of_dst(self.linear(edge.dst)) + self.of_data(edge.data[:, None]))
        return gate * (self.of_src(torch.tanh(self.linear(edge.src))) + self.linear(self.of_input(edge.src)))


class OfTypes(sagann.SagaLayer):
    """A map by edge type before the norm."""

    accumulator = "mean"
    edge_data = "type"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(NUM_TYPES, in_dim, out_dim) / 3)
        self.own, self.norm = nn.Linear(in_dim, out_dim), nn.BatchNorm1d(out_dim)

    def apply_edge(self, edge: Any) -> Tensor:
        mapped = sagann.typed_linear(edge.src, edge.data, self.weight)
        return torch.relu(self.norm(mapped + self.own(edge.dst)))


class Detached(OfEdges):
    """Its norm gets no gradient."""

    def apply_edge(self, edge: Any) -> Tensor:
        rows = self.linear(torch.cat([edge.src, edge.dst], dim=1))
        return rows + self.norm(rows).detach()


class Stack(nn.Module):
    """Two layers, with a norm over vertices between them."""

    num_hops = 2

    def __init__(self, kind: Any, in_dim: int) -> None:
        super().__init__()
        self.first, self.between, self.second = kind(in_dim, in_dim), nn.BatchNorm1d(in_dim), kind(in_dim, in_dim)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.second(hops[1], torch.relu(self.between(self.first(hops[0], x))))


MODELS: list[Callable[[int], Any]] = [
    Between,
    OfAllKinds,
    OfHeads,
    *(partial(Stack, kind) for kind in (Messages, Heads, OfOneEnd, OfTypes, Detached)),
]


def given(dtype: torch.dtype = torch.float64, num_hops: int = 2) -> tuple[list[Topology], Tensor]:
    """A graph with isolated vertices, weights and types of edges; and its features."""
    edges = labelled_graph(types=NUM_TYPES).topology
    num = edges.num_src + 3
    data = {"type": edges.edge_data["type"], "weight": edges.edge_data["weight"].to(dtype)}
    isolated = Topology.from_coo(
        src=edges.indices.long(), dst=edges.edge_dst().long(), num_src=num, num_dst=num, edge_data=data
    )
    x = torch.randn(num, 6, generator=torch.Generator().manual_seed(3)) + 3
    return [isolated] * num_hops, x.to(dtype).requires_grad_()
