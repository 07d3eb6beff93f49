"""Many graphs to learn, and models of them, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sagann.graph import Graph, Topology, random_graph_split
from sagann.graph.rows import offsets_of
from sagann.nn import GraphModel, pool
from tests.train.runs import TwoLayers, seeded_model


def rings_and_stars(num_graphs: int = 60, *, regression: bool = False, multi_label: bool = False) -> Graph:
    """Rings and stars of 4 to 9 vertices, some of unknown kind, with noise for features; or with numbers of vertices as targets."""
    generator = torch.Generator().manual_seed(3)
    sizes = torch.randint(4, 10, (num_graphs,), generator=generator)
    ptr, kinds = offsets_of(sizes), torch.arange(num_graphs) % 2
    src, dst = [], []
    for first, size, kind in zip(ptr.tolist(), sizes.tolist(), kinds.tolist(), strict=False):
        own = torch.arange(size)
        src += [first + own, first + (torch.zeros_like(own) if kind else (own + 1) % size)]
        dst += [first + (torch.zeros_like(own) if kind else (own + 1) % size), first + own]
    labels = torch.stack([kinds, (sizes > 6).long()], 1).to(torch.uint8) if multi_label else kinds.clone()
    if not multi_label:
        labels[5::10] = -1
    graph = Graph(
        topology=Topology.from_coo(src=torch.cat(src), dst=torch.cat(dst), num_src=int(ptr[-1])),
        features=torch.randn(int(ptr[-1]), 8, generator=generator),
        graph_ptr=ptr,
        graph_labels=None if regression else labels,
        num_graph_classes=0 if regression else 2,
        graph_targets=torch.stack([sizes.float() / 9, kinds.float()], 1) if regression else None,
        name="rings",
    )
    return random_graph_split(graph, train=0.6, val=0.2, seed=0)


def graph_model(*, dropout: float = 0.5, num_outputs: int = 2) -> GraphModel:
    """Two layers with dropout and BatchNorm, pooled two ways."""
    gnn = seeded_model(TwoLayers, in_dim=8, out_dim=6, dropout=dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return GraphModel(gnn, 6, num_outputs, pool=("mean", "max"), dropout=dropout)


class OwnReadout(nn.Module):
    """A model of a user's own that pools by itself."""

    def __init__(self, in_dim: int = 8, out_dim: int = 2) -> None:
        super().__init__()
        self.gnn = TwoLayers(in_dim, 4, dropout=0.0)
        self.score, self.head = nn.Linear(4, 1), nn.Linear(4, out_dim)

    def forward(self, hops: Sequence[Topology], x: Tensor, graph_ptr: Tensor) -> Tensor:
        rows = self.gnn(hops, x)
        weight = self.score(rows).sigmoid()
        return self.head(pool(rows * weight, graph_ptr, "sum") / pool(weight, graph_ptr, "sum"))


def on_answers_of_vertices(graph: Graph) -> Graph:
    """The graph with answers of vertices beside those of graphs."""
    return replace(graph, labels=torch.arange(graph.num_vertices) % 3, num_classes=3)
