"""Graphs, models and comparisons that the tests of training share."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sagann.graph import Graph, Topology
from sagann.nn import ModelConfig
from sagann.saga import SagaLayer
from sagann.train import (
    Contract,
    EpochProgress,
    EpochRecord,
    Predictor,
    Reporter,
    RunInfo,
    TrainConfig,
    Trainer,
    TrainResult,
)
from tests.graph.graphs import sparse

CPU = torch.device("cpu")


class Mean(SagaLayer):
    """Mean over in-edges, then a linear map of it beside the vertex's own row."""

    accumulator = "mean"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_dim, out_dim)
        self.neighbours = nn.Linear(in_dim, out_dim, bias=False)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.own(vertex) + self.neighbours(accum)


class TwoLayers(nn.Module):
    """Two layers with dropout and a BatchNorm between them: random numbers, and state beside the parameters."""

    def __init__(self, in_dim: int = 8, out_dim: int = 3, *, hidden: int = 8, dropout: float = 0.5) -> None:
        super().__init__()
        self.first = Mean(in_dim, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = Mean(hidden, out_dim)
        self.dropout = dropout

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(hops[0], x)))
        return self.second(hops[1], F.dropout(hidden, self.dropout, self.training))


class Mixing(TwoLayers):
    """Its result depends on a mean over all vertices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return super().forward(hops, x - x.mean(0))


class Plain(nn.Module):
    """No SAGA layer and no hops: a linear map of the features."""

    def __init__(self, in_dim: int = 8, out_dim: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.linear(x)


class CrashError(Exception):
    """Ends a run, as a crash would."""


def crash() -> None:
    raise CrashError


class Heard(Reporter):
    """Keeps what it is told, and calls a function after a batch of an epoch, or after an epoch where the batch is 0."""

    def __init__(self, epoch: int | None = None, batch: int = 0, call: Callable[[], object] = crash) -> None:
        self.place, self.call = (epoch, batch), call
        self.messages: list[str] = []
        self.batches: list[EpochProgress] = []
        self.records: list[EpochRecord] = []
        self.results: list[TrainResult] = []

    def on_start(self, info: RunInfo) -> None:
        self.info = info

    def on_batch(self, progress: EpochProgress) -> None:
        self.batches.append(progress)
        if (progress.epoch, progress.batch) == self.place:
            self.call()

    def on_epoch(self, record: EpochRecord) -> None:
        self.records.append(record)
        if (record.epoch, 0) == self.place:
            self.call()

    def on_end(self, result: TrainResult) -> None:
        self.results.append(result)

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def seeded_model(kind: type[nn.Module] = TwoLayers, *, seed: int = 0, **options: Any) -> nn.Module:
    """A model whose weights are the same in every test."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(**options)


def community_graph(num_vertices: int = 90, *, multi_label: bool = False, num_classes: int = 3) -> Graph:
    """Classes that both features and neighbours tell apart, with noise; splits by turns."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(num_vertices) % num_classes
    step = torch.randint(1, 6, (6 * num_vertices,), generator=generator) * num_classes
    src = torch.arange(num_vertices).repeat(6)
    noise = torch.rand(len(src), generator=generator) < 0.15
    dst = (src + torch.where(noise, step + 1, step)) % num_vertices
    features = 1.5 * F.one_hot(labels, 8) + torch.randn(num_vertices, 8, generator=generator)
    part = (torch.arange(num_vertices) // num_classes) % 3
    return Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices),
        features=features,
        labels=F.one_hot(labels, num_classes).to(torch.uint8) if multi_label else labels,
        num_classes=num_classes,
        splits={"train": part == 0, "val": part == 1, "test": part == 2},
        name="communities",
    )


def values_graph(num_vertices: int = 90, *, num_targets: int = 1) -> Graph:
    """Targets that depend on a vertex's features and on those of its neighbours, with little noise; splits by turns."""
    graph = community_graph(num_vertices)
    generator = torch.Generator().manual_seed(9)
    weights = torch.randn(2, 8, num_targets, generator=generator)
    means = (dense_means(graph) @ graph.features.double()).float()
    values = graph.features @ weights[0] + means @ weights[1]
    targets = 5 + values + 0.1 * torch.randn(values.shape, generator=generator)
    return replace(graph, labels=None, num_classes=0, targets=targets, name="values")


def dense_means(graph: Graph) -> Tensor:
    """The matrix that means over in-edges are products with, float64 [V, V]."""
    sums = torch.zeros(graph.num_vertices, graph.num_vertices, dtype=torch.float64)
    dst, src = graph.topology.edge_dst().long(), graph.topology.indices.long()
    sums.index_put_((dst, src), torch.ones(1, dtype=torch.float64), accumulate=True)
    return sums / sums.sum(1, keepdim=True).clamp(min=1)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert list(first) == list(second)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def numbers_of(result: TrainResult) -> list[dict[str, Any]]:
    """The history without what a clock and the counters of tiers say."""
    lines = [replace(record, extra={}).to_json() for record in result.history]
    return [{name: value for name, value in line.items() if name != "epoch_s"} for line in lines]


def predictor_of(model: nn.Module | None = None, graph: Graph | None = None, **options: Any) -> Predictor:
    graph = graph if graph is not None else community_graph()
    return Predictor(model if model is not None else seeded_model(), Contract.of(graph), device=CPU, **options)


def sparse_graph() -> Graph:
    graph = community_graph()
    return replace(graph, features=sparse(graph.features * (graph.features > 0.5)))


def written_lines(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's history."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's history without what a clock says."""
    lines = written_lines(run_dir)
    return [{name: value for name, value in line.items() if name not in ("epoch_s", "mteps")} for line in lines]


BESIDE_SETTINGS = {"run_dir", "reporter", "progress", "source", "metrics", "validate", "workers"}


def trainer_of(
    model: nn.Module | ModelConfig | None = None,
    graph: Graph | None = None,
    **options: Any,
) -> Trainer:
    """A trainer on the processor; what it takes beside a TrainConfig, functions above all, is told from the settings."""
    own = {name: options.pop(name) for name in [*options] if name in BESIDE_SETTINGS or callable(options[name])}
    config = TrainConfig(**{"epochs": 20, "device": "cpu", **options})
    model = model if model is not None else seeded_model()
    graph = graph if graph is not None else community_graph()
    return Trainer(model, graph, config, **own)


def fit_until(epoch: int, batch: int, *given: Any, **options: Any) -> TrainResult:
    """Train until a batch of an epoch, and stop there as Ctrl-C does; after the epoch where the batch is 0."""
    heard = Heard(epoch, batch)
    trainer = trainer_of(*given, reporter=heard, **options)
    heard.call = trainer.stop
    return trainer.fit()
