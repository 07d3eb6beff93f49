"""What is compared: models, graphs and modes of training, and the numbers that a run of the Trainer gives for them.

Everything goes through public names, so that the cases stay as they are when the code below those names changes.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sagann
from sagann.graph import for_task
from sagann.nn import ModelConfig
from sagann.sampling import hold_out_links
from tests.graphs import odd_topologies
from tests.train.graphs_of import graph_model, rings_and_stars
from tests.zoo import DISTINCT

WIDTH, HIDDEN, CLASSES, TYPES = 5, 4, 3, 3


class EdgeMLP(sagann.SagaLayer):
    """Two maps of both ends with a ReLU between them: edges that cannot be hoisted."""

    accumulator = "sum"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * in_dim, out_dim), nn.Linear(out_dim, out_dim)

    def apply_edge(self, edge: Any) -> Tensor:
        return self.second(torch.relu(self.first(torch.cat([edge.src, edge.dst], 1))))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.tanh(accum)


class SeveralMessages(sagann.SagaLayer):
    """Several accumulators of one message, whose edges are weighted."""

    accumulator, edge_data = ("mean", "max", "std"), "weight"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.own, self.out = nn.Linear(in_dim, out_dim), nn.Linear(3 * out_dim, out_dim)

    def apply_edge(self, edge: Any) -> Tensor:
        return torch.sigmoid(self.own(edge.src)) * edge.data.unsqueeze(1)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.out(accum)


class NormedEdges(sagann.SagaLayer):
    """A BatchNorm over all edges, and one over what vertices have gathered.

    Equal rows are normalised to rounding errors: a large ``eps`` keeps them small, and no ReLU decides by their sign.
    """

    accumulator = "mean"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * in_dim, out_dim)
        self.of_edges, self.of_vertices = nn.BatchNorm1d(out_dim, eps=0.1), nn.BatchNorm1d(out_dim, eps=0.1)

    def apply_edge(self, edge: Any) -> Tensor:
        return torch.tanh(self.of_edges(self.linear(torch.cat([edge.src, edge.dst], 1))))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.of_vertices(accum)


def _two(layer: type[sagann.SagaLayer]) -> Callable[[sagann.Graph, float], nn.Module]:
    def build(graph: sagann.Graph, dropout: float) -> nn.Module:
        return sagann.GNN([layer(graph.num_features, HIDDEN), layer(HIDDEN, CLASSES)], dropout=dropout)

    return build


def _zoo(name: str) -> Callable[[sagann.Graph, float], nn.Module]:
    def build(graph: sagann.Graph, dropout: float) -> nn.Module:
        return sagann.build_model(ModelConfig(model=name, hidden=HIDDEN, heads=2, layers=2, dropout=dropout), graph)

    return build


def _pyg(conv: str) -> Callable[[sagann.Graph, float], nn.Module]:
    def build(graph: sagann.Graph, dropout: float) -> nn.Module:
        layers = importlib.import_module("torch_geometric.nn")

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = getattr(layers, conv)(graph.num_features, HIDDEN)
                self.second = getattr(layers, conv)(HIDDEN, CLASSES)

            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                rows = F.dropout(self.first(x, edge_index).relu(), dropout, self.training)
                return self.second(rows, edge_index)

        return Net()

    return build


MODELS: dict[str, Callable[[sagann.Graph, float], nn.Module]] = {
    **{name: _zoo(name) for name in DISTINCT},
    "edge MLP": _two(EdgeMLP),
    "several messages": _two(SeveralMessages),
    "batch norms": _two(NormedEdges),
    "PyG GCNConv": _pyg("GCNConv"),
    "PyG GATConv": _pyg("GATConv"),
}
"Builds a model of two hops for a graph, with a probability of dropout."
GRAPHS = ("no edges", "isolated vertices", "self-loops", "multi-edges", "one hub", "skewed", "sparse features")
MODES = {"without dropout": 0.0, "with dropout": 0.5}
"Probability of dropout in training; every run is evaluated too."


@dataclass(frozen=True)
class Case:
    """A way to train, a model, a graph and a mode, by name."""

    way: str
    model: str
    graph: str
    mode: str


def why_not(case: Case) -> str | None:
    """Why a case has other numbers than the naive engine in memory; None where it has the same."""
    drops = case.mode == "with dropout"
    if "sampled" in case.way and case.model == "batch norms":
        return "a mini-batch is normalised by its own vertices and edges"
    if "hot tier" in case.way and case.graph == "sparse features":
        return "rows of sparse features differ in size, and have no tiers"
    if drops and case.graph == "sparse features" and "sampled" in case.way:
        return "dropout is drawn for each non-zero, and those of a mini-batch are numbered anew"
    if drops and "PyG" in case.model and case.way != "in memory":
        return "PyTorch's dropout draws row after row, and the rows are numbered anew"
    return None


@cache
def graph_of(name: str) -> sagann.Graph:
    """A graph in float64 whose edges have weights and types."""
    topology = odd_topologies(types=TYPES)["skewed" if name == "sparse features" else name]
    weight = topology.edge_data["weight"].double()
    topology = topology.with_edge_data(weight=weight, type=topology.edge_data["type"])
    num = topology.num_dst
    generator = torch.Generator().manual_seed(num)
    features = torch.randn(num, WIDTH, generator=generator, dtype=torch.float64)
    if name == "sparse features":
        with warnings.catch_warnings():
            # PyTorch says that the layout is in beta.
            warnings.simplefilter("ignore")
            features = (features * (features > 0.7)).to_sparse_csr()
    ids = torch.arange(num)
    return sagann.Graph(
        topology=topology,
        features=features,
        labels=ids % CLASSES,
        num_classes=CLASSES,
        splits={"train": ids % 4 != 1, "val": ids % 4 == 1},
        num_edge_types=TYPES,
    )


@dataclass(frozen=True)
class Numbers:
    """What a run gives: losses, learned changes of the weights, and outputs of every vertex."""

    losses: Tensor
    changes: dict[str, Tensor]
    probabilities: Tensor
    embedding: Tensor

    def named(self) -> Iterator[tuple[str, Tensor, float]]:
        """Every tensor with its name, and the magnitude that its errors are relative to."""
        yield "losses", self.losses, 1.0
        largest = max(
            [float(change.abs().max()) for change in self.changes.values() if change.numel()], default=0.0
        )
        for name, change in self.changes.items():
            yield name, change, max(largest, 1e-3)
        yield "probabilities", self.probabilities, 1.0
        yield "embedding", self.embedding, max(1.0, float(self.embedding.abs().max()))


def config_of(**options: Any) -> sagann.TrainConfig:
    """Three epochs of gradient descent, by which gradients become changes of the weights."""
    stated = {"optimizer": "SGD", "lr": 0.5, "weight_decay": 0.0, "epochs": 3, "weights": "last", "device": "cpu"}
    return sagann.TrainConfig(**{**stated, "seed": 3, **options})


def numbers_of(model: str, graph: str, mode: str, *, dtype: torch.dtype = torch.float64, **given: Any) -> Numbers:
    """Train a model on a graph, and use it.

    Args:
        model: a name of ``MODELS``.
        graph: a name of ``GRAPHS``.
        mode: a name of ``MODES``.
        dtype: type of weights and features.
        given: ``workers``, and options of the TrainConfig.
    """
    workers = given.pop("workers", None)
    data = graph_of(graph)
    assert data.features is not None
    data = replace(data, features=data.features.to(dtype))
    torch.manual_seed(5)
    module = MODELS[model](data, MODES[mode]).to(dtype)
    before = {name: weight.detach().clone() for name, weight in module.state_dict().items()}
    trainer = sagann.Trainer(module, data, config_of(**given), progress=False, workers=workers)
    result = trainer.fit()
    changes = {
        name: weight - before[name] for name, weight in module.state_dict().items() if weight.is_floating_point()
    }
    return Numbers(
        losses=torch.tensor([record.loss for record in result.history], dtype=torch.float64),
        changes=changes,
        probabilities=trainer.predict(probabilities=True),
        embedding=trainer.embed(),
    )


BATCHES: dict[str, dict[str, Any]] = {
    "vertices": {"sample": (3, 2), "batch_size": 13},
    "vertices, hot tier": {"sample": (3, 2), "batch_size": 13, "hot": "20%"},
    "vertices, made one by one": {"sample": (3, 2), "batch_size": 13, "batches_ahead": 0},
    "links": {"sample": (3, 2), "batch_size": 61, "task": "link-prediction", "negatives": 2},
    "graphs": {"batch_size": 7},
}
"Options of runs in batches, which divide unevenly among workers, and the last of which has fewer seeds than three workers."


def numbers_of_batches(name: str, workers: Any = None) -> Numbers:
    """Train on batches, in float64; a run of links scores links, and gives vertices no probabilities."""
    graph = rings_and_stars(17) if name == "graphs" else replace(graph_of("skewed"), name=name)
    if name == "links":
        graph = for_task(hold_out_links(graph, seed=0, negatives=5), "link-prediction")
    assert isinstance(graph.features, Tensor)
    graph = replace(graph, features=graph.features.double())
    torch.manual_seed(5)
    module = graph_model(dropout=0.0) if name == "graphs" else _zoo("sage")(graph, 0.5)
    module = module.double()
    before = {key: weight.detach().clone() for key, weight in module.state_dict().items()}
    config = config_of(**{**BATCHES[name], "lr": 0.1})
    trainer = sagann.Trainer(module, graph, config, progress=False, workers=workers)
    result = trainer.fit()
    ids = torch.arange(graph.num_vertices)
    links = (ids, ids.flip(0), ids % TYPES) if name == "links" else None
    return Numbers(
        losses=torch.tensor([record.loss for record in result.history], dtype=torch.float64),
        changes={
            key: weight - before[key] for key, weight in module.state_dict().items() if weight.is_floating_point()
        },
        probabilities=trainer.predict(probabilities=True, links=links),
        embedding=trainer.embed(),
    )


def assert_equal(found: Numbers, right: Numbers, *, limit: float = 1e-11) -> None:
    """Require the same numbers, up to ``limit`` of the largest of their kind."""
    for (name, mine, _), (_, theirs, scale) in zip(found.named(), right.named(), strict=True):
        torch.testing.assert_close(
            mine, theirs, rtol=limit, atol=limit * scale, msg=lambda text, at=name: f"{at}: {text}"
        )
