"""Graphs for the tests of PyG's models, and the layers of PyG that a test tries one by one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from sagann.graph import Graph, Topology
from sagann.interop import from_pyg_model
from sagann.train import TrainConfig, Trainer
from tests.graphs import edge_index
from tests.tolerances import assert_close, largest

WIDTH, EDGE_DIM, CLASSES = 8, 3, 3
"Widths that all models share, so that they share kernels."
DATA = {"edge_weight": "weight", "edge_attr": "attr", "edge_type": "type"}
"Arguments of a model of PyG, and the edge data that they are."


def pyg_graph(
    *data: str, num_vertices: int = 30, num_edges: int = 150, dtype: torch.dtype = torch.float64
) -> Graph:
    """Edges some of which come twice, some self-loops, vertices without in-edges, and the edge data of these names."""
    generator = torch.Generator().manual_seed(3)
    src, dst = (torch.rand(2, num_edges, generator=generator) ** 2 * num_vertices).long()
    loops = torch.arange(0, num_vertices, 7)
    kept = (src != dst) & (dst < num_vertices - 3)
    src, dst = torch.cat([src[kept], loops]), torch.cat([dst[kept], loops])
    rows = {
        "weight": torch.rand(len(src), generator=generator, dtype=dtype) + 0.5,
        "attr": torch.randn(len(src), EDGE_DIM, generator=generator, dtype=dtype),
        "type": torch.randint(3, (len(src),), generator=generator),
    }
    parts = torch.arange(num_vertices) % 3
    return Graph(
        topology=Topology.from_coo(
            src=src, dst=dst, num_src=num_vertices, edge_data={name: rows[name] for name in data}
        ),
        features=torch.randn(num_vertices, WIDTH, generator=generator, dtype=dtype),
        labels=torch.randint(CLASSES, (num_vertices,), generator=generator),
        num_classes=CLASSES,
        splits={"train": parts == 0, "val": parts == 1, "test": parts == 2},
        num_edge_types=3 if "type" in data else 0,
        name="tiny",
    )


def mlp(in_dim: int = WIDTH, out_dim: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(in_dim, WIDTH), nn.ReLU(), nn.Linear(WIDTH, out_dim))


class Own(pyg.MessagePassing):
    """A layer of one's own, which adds up mapped rows of sources."""

    def __init__(self, aggr: str = "add") -> None:
        super().__init__(aggr=aggr)
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.map(x))

    def message(self, x_j: Tensor) -> Tensor:
        return x_j


class Plain(nn.Module):
    """One layer, called with rows and edges."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.conv(x, edge_index)


class Weighted(Plain):
    """One layer, called with the edges' weights as well."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
        return self.conv(x, edge_index, edge_weight)


class Attributed(Plain):
    """One layer, called with the edges' features as well."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Any:
        return self.conv(x, edge_index, edge_attr)


class FromFirst(Plain):
    """One layer that is called with the first rows besides."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.conv(x, x.relu(), edge_index)


class Two(nn.Module):
    """Two layers with ReLU and dropout between them."""

    def __init__(self, first: nn.Module, second: nn.Module, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.dropout = first, second, nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.second(self.dropout(self.first(x, edge_index).relu()), edge_index)


def seeded(build: Callable[[], nn.Module], *, seed: int = 1) -> nn.Module:
    """A model whose weights are the same in every test; none of them is all zeros or all ones, as biases are at first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                if not nn.parameter.is_lazy(parameter):
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def arguments_of(model: nn.Module, topology: Topology) -> dict[str, Tensor]:
    """The edge data that a model of PyG takes, by its arguments."""
    taken = inspect.signature(model.forward).parameters
    return {
        name: topology.edge_data[stored]
        for name, stored in DATA.items()
        if name in taken and stored in topology.edge_data
    }


def values_and_gradients(
    run: Callable[[Tensor], Tensor], model: nn.Module, features: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """What a model gives, and the gradients of a weighted sum of it with respect to the features and every parameter."""
    x = features.clone().requires_grad_()
    model.zero_grad()
    out = run(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).sin()
    (out * weights).sum().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients = {"features": x.grad, **found}
    return out.detach(), {name: each.clone() for name, each in gradients.items() if each is not None}


def assert_as_in_pyg(
    model: nn.Module,
    graph: Graph,
    *,
    given: Mapping[str, Tensor] | None = None,
    run: Callable[[Any, Graph, Tensor], Tensor] | None = None,
) -> Any:
    """Values, and gradients of features and parameters, are those of the untouched model; gives sagann's model.

    Args:
        model: of PyG.
        graph: the graph for both.
        given: edge data by the model's arguments, if others than the graph's.
        run: computes the values of sagann's model on its prepared graph; in memory by default.
    """
    twin = copy.deepcopy(model)
    ours = from_pyg_model(model, graph)
    prepared = ours.prepare(graph)
    edges = edge_index(graph.topology)
    more = arguments_of(twin, graph.topology) if given is None else given
    expected, slopes = values_and_gradients(lambda x: twin(x, edges, **more), twin, graph.features)

    def in_memory(ours: Any, prepared: Graph, x: Tensor) -> Tensor:
        return ours(prepared.hops(ours.num_hops), x)

    found, own_slopes = values_and_gradients(lambda x: (run or in_memory)(ours, prepared, x), model, graph.features)
    assert_close(found, expected)
    assert own_slopes.keys() == slopes.keys()
    scale = max(map(largest, slopes.values()))
    for slope in slopes:
        assert_close(own_slopes[slope], slopes[slope], scale=scale)
    return ours


def prepared(model: nn.Module, graph: Graph) -> tuple[Any, Sequence[Topology], Tensor]:
    """sagann's model of a model of PyG, and the hops and features of a graph to call it with."""
    ours = from_pyg_model(model, graph)
    made = ours.prepare(graph)
    return ours, made.hops(ours.num_hops), made.features


def gcn() -> nn.Module:
    return Two(pyg.GCNConv(WIDTH, WIDTH), pyg.GCNConv(WIDTH, CLASSES), dropout=0.5)


def sage() -> nn.Module:
    return Two(pyg.SAGEConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, CLASSES))


def gat() -> nn.Module:
    return Two(pyg.GATConv(WIDTH, WIDTH // 2, heads=2, dropout=0.5), pyg.GATConv(WIDTH, CLASSES))


def trainer_of(model: nn.Module, graph: Graph, *, run_dir: Path | None = None, **options: Any) -> Trainer:
    config = TrainConfig(**{"epochs": 3, "device": "cpu", **options})
    return Trainer(model, graph, config, run_dir=run_dir, progress=False)


def logits_of(trainer: Trainer, graph: Graph | None = None) -> Tensor:
    """What a trainer's model gives for its own graph, or for another one."""
    predictor = trainer.predictor
    return predictor.logits(trainer.prepared if graph is None else predictor.prepare(graph))


def small(*data: str) -> Graph:
    return pyg_graph(*data, dtype=torch.float32)


def rows_in_pyg(model: nn.Module, graph: Graph, **more: Tensor) -> Tensor:
    """What the model gives in PyG, in evaluation."""
    with torch.no_grad():
        out: Tensor = copy.deepcopy(model).eval()(graph.features, edge_index(graph.topology), **more)
    return out


class Encoded(nn.Module):
    """Edge data that the model computes with, before its layers get them."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.again = conv, pyg.GINEConv(mlp())
        self.encoder = nn.Sequential(
            nn.Linear(EDGE_DIM, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
        )
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        encoded = self.encoder(edge_attr)
        x = self.conv(x, edge_index, 2 * encoded - edge_attr[:, :1])
        return self.again(x, edge_index, (encoded * self.scale).sigmoid())
