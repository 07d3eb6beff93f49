"""Models of PyG on mini-batches: with all neighbours they give the rows and gradients of the whole graph, or they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from sagann.errors import LayerError
from sagann.graph import Graph
from sagann.interop import from_pyg_model
from sagann.runtime.loading import MiniBatches
from sagann.saga.engine import NaiveEngine, using_engine
from tests.interop.pyg_models import (
    CLASSES,
    EDGE_DIM,
    WIDTH,
    Attributed,
    FromFirst,
    Plain,
    assert_as_in_pyg,
    mlp,
    pyg_graph,
    sage,
    seeded,
    small,
    trainer_of,
)
from tests.interop.test_pyg_layers import ATTRIBUTED, PLAIN, Build


class Chain(nn.Module):
    """A layer after another one of its kind. Both get the same arguments beside their rows."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.first, self.second = build(), build()

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        return self.second(self.first(x, *more).relu(), *more)


class Placed(Plain):
    """Layers that are called with positions."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.conv(x, x[:, :3], edge_index)


class Oriented(Plain):
    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.conv(x, x[:, :3], x[:, 3:6], edge_index)


class FromInput(pyg.MessagePassing):
    """Its messages read rows of two depths, those of the deeper one at the destination, or at the source."""

    def __init__(self, *, reads_deeper: str) -> None:
        super().__init__(aggr="mean")
        self.map, self.reads_deeper = nn.Linear(WIDTH, WIDTH), reads_deeper

    def forward(self, x: Tensor, first: Tensor, edge_index: Tensor) -> Tensor:
        deeper, other = self.map(x), first
        if self.reads_deeper == "destination":
            deeper, other = other, deeper
        return self.propagate(edge_index, a=deeper, b=other)

    def message(self, b_i: Tensor, a_j: Tensor) -> Tensor:
        return a_j * b_i


class Backwards(pyg.MessagePassing):
    """Takes a pair, and reads the destinations' rows after the sources'."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")

    def forward(self, x: Tensor | tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        x = (x, x) if isinstance(x, Tensor) else x
        out: Tensor = self.propagate(edge_index, x=x)
        return out + x[1]

    def message(self, x_j: Tensor, x_i: Tensor) -> Tensor:
        return x_j * x_i


class Stacked(Plain):
    """A layer that takes the rows of several layers."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(torch.stack([x, x.relu()], dim=1), edge_index)


TWICE: dict[str, tuple[type[Plain], Build]] = {
    **{
        name: (Plain, PLAIN[name])
        for name in ("gcn", "sage several", "gat", "gatv2", "transformer", "gin", "edge", "gen", "sg")
    },
    **{
        name: (Plain, lambda name=name: getattr(pyg, name)(WIDTH, WIDTH))
        for name in ("FeaStConv", "FiLMConv", "GeneralConv", "GraphConv", "LEConv", "ResGatedGraphConv")
    },
    **{kind.__name__: (Plain, kind) for kind in (pyg.AGNNConv, pyg.LGConv, pyg.SimpleConv)},
    **{f"{name} with features": (Attributed, ATTRIBUTED[name]) for name in ("gine", "nn", "gmm")},
    "cg with features": (Attributed, lambda: pyg.CGConv(WIDTH, EDGE_DIM)),
    "point-net": (Placed, lambda: pyg.PointNetConv(mlp(WIDTH + 3))),
    "point-transformer": (Placed, lambda: pyg.PointTransformerConv(WIDTH, WIDTH)),
    "ppf": (Oriented, lambda: pyg.PPFConv(mlp(WIDTH + 4))),
    "gcn2": (FromFirst, lambda: pyg.GCN2Conv(WIDTH, 0.1)),
    "dna": (Plain, lambda: Stacked(pyg.DNAConv(WIDTH))),
    "own with deeper sources": (FromFirst, lambda: FromInput(reads_deeper="source")),
    "own with deeper destinations": (FromFirst, lambda: FromInput(reads_deeper="destination")),
    "own backwards": (Plain, Backwards),
}
"Layers that keep the rows of a hop's destinations alone, or take a pair."
REFUSED: dict[str, tuple[type[Plain], Build]] = {
    **{name: (Plain, PLAIN[name]) for name in ("appnp", "gated", "own pairs", "pna", "tag")},
    "own attention": (Attributed, ATTRIBUTED["own attention"]),
    "ssg": (Plain, lambda: pyg.SSGConv(WIDTH, WIDTH, alpha=0.1)),
    "mix-hop": (Plain, lambda: pyg.MixHopConv(WIDTH, WIDTH // 2, powers=[0, 1])),
    "fa": (FromFirst, lambda: pyg.FAConv(WIDTH)),
    "arma": (Plain, lambda: pyg.ARMAConv(WIDTH, WIDTH, num_stacks=2, num_layers=2)),
    "antisymmetric": (Plain, lambda: pyg.AntiSymmetricConv(WIDTH)),
    "point-gnn": (Placed, lambda: pyg.PointGNNConv(mlp(WIDTH, 3), mlp(WIDTH + 3), mlp())),
    "gps": (Plain, lambda: pyg.GPSConv(WIDTH, pyg.GINConv(mlp()), norm=None)),
}
"Layers that join rows of a hop's sources and of its destinations."


@pytest.mark.parametrize("name", TWICE)
def test_two_layers_of_all_neighbours_give_rows_and_gradients_of_the_whole_graph(name: str) -> None:
    kind, build = TWICE[name]
    graph = pyg_graph("weight", "attr")

    def on_batches(ours: Any, prepared: Graph, x: Tensor) -> Tensor:
        order = torch.arange(graph.num_vertices).flip(0)
        batches = MiniBatches(prepared, fanouts=[-1] * ours.num_hops, batch_size=11, seeds=order, shuffle=False)
        return torch.cat([ours(batch.blocks, x[batch.src_ids]) for batch in batches]).flip(0)

    with using_engine(NaiveEngine()):
        assert_as_in_pyg(seeded(lambda: kind(Chain(build))).double().eval(), graph, run=on_batches)


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_join_rows_of_two_depths_are_refused(name: str) -> None:
    kind, build = REFUSED[name]
    graph = small("weight", "attr")
    ours = from_pyg_model(seeded(lambda: kind(Chain(build))), graph)
    with pytest.raises(LayerError, match="cannot walk mini-batches"):
        ours.require_sampled()


def test_more_layers_than_made_up_vertices() -> None:
    ours = from_pyg_model(Plain(pyg.SGConv(WIDTH, WIDTH, K=14)), small())
    assert ours.levels == tuple(range(14))
    assert not ours.not_sampled


class Positioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(100, WIDTH), pyg.SAGEConv(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.conv(x + self.table(torch.arange(len(x))), edge_index)


class Between(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.two, self.between = sage(), between

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.two.second(self.between(self.two.first(x, edge_index)), edge_index)


@pytest.mark.parametrize(
    "build",
    [Positioned, lambda: Between(pyg.GraphNorm(WIDTH)), lambda: Between(lambda x: x.flip(0))],
    ids=["positions", "graph norm", "flip"],
)
def test_models_that_mix_vertices_are_refused_before_training(build: Build) -> None:
    with pytest.raises(
        LayerError, match=r"must treat vertices independently|cannot walk mini-batches: its rows depend"
    ):
        trainer_of(build(), small(), sample=(-1,) * (1 if build is Positioned else 2)).fit()
