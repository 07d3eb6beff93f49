"""Edges inside a part are gathered while the halo's rows travel, with the numbers of one process; workers are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sagann
from sagann.errors import LayerError
from sagann.graph import Topology
from sagann.kernels.edge import naive
from sagann.runtime.workers import Workers
from tests.graphs import odd_topologies, random_topology
from tests.runtime.workers.test_halo import part_topology
from tests.runtime.workers.threads import Queues, ThreadedWorkers, in_threads
from tests.tolerances import assert_close

TOPOLOGIES = odd_topologies()


class Attending(sagann.SagaLayer):
    """Scores and values of an edge, from both ends and from data."""

    accumulator = "softmax"
    edge_data = "weight"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.values, self.scores = nn.Linear(width, 2 * width), nn.Linear(2 * width, 1)

    def apply_edge(self, edge: sagann.Edge) -> tuple[Tensor, Tensor]:
        both = torch.cat([edge.src, edge.dst], -1)
        score = torch.tanh(self.scores(both))[:, 0] * edge.data
        return score, torch.relu(self.values(edge.src)) * edge.dst[:, :1]

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


class Reduced(sagann.SagaLayer):
    """A message of both ends, data and a parameter, reduced by one accumulator or by several."""

    edge_data = "weight"

    def __init__(self, width: int, accumulator: Any) -> None:
        super().__init__()
        self.accumulator = accumulator
        self.shift = nn.Parameter(torch.linspace(-1, 1, width))

    def apply_edge(self, edge: sagann.Edge) -> Tensor:
        return torch.sigmoid(edge.src * edge.data[:, None] + edge.dst + self.shift) * edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


LAYERS: dict[str, Callable[[], sagann.SagaLayer]] = {
    "softmax": lambda: Attending(4),
    **{
        str(names): lambda names=names: Reduced(4, names) for names in ("sum", "var", "mul", ("mean", "std", "sum"))
    },
}


def gradients(
    layer: sagann.SagaLayer, topology: Topology, x: Tensor, weight: Tensor, upstream: Tensor
) -> dict[str, Tensor]:
    """The layer's result, and gradients of rows, edge data and parameters."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = layer(topology.with_edge_data(weight=weight), x)
    wanted = {"x": x, "weight": weight, **dict(layer.named_parameters())}
    found = torch.autograd.grad(out, list(wanted.values()), upstream)
    return {"out": out.detach(), **dict(zip(wanted, found, strict=True))}


def assert_as_one_process(
    layer: sagann.SagaLayer, topology: Topology, x: Tensor, weight: Tensor, size: int
) -> None:
    upstream = torch.ones_like(layer(topology.with_edge_data(weight=weight), x))
    expected = gradients(layer, topology, x, weight, upstream)

    def work(workers: Workers) -> dict[str, Tensor]:
        part = part_topology(topology, workers)
        own = upstream[: part.num_dst]
        return gradients(layer, part, x[part.remote.part.vertices], weight[part.remote.part.edges], own)

    found = in_threads(work, size)
    for key in ("out", "x", "weight"):
        assert_close(torch.cat([each[key] for each in found]), expected[key])
    for key, _ in layer.named_parameters():
        assert_close(torch.stack([each[key] for each in found]).sum(0), expected[key])


@pytest.mark.parametrize("name", ["isolated vertices", "one hub"])
@pytest.mark.parametrize("accumulator", LAYERS)
def test_results_and_gradients_are_those_of_one_process(accumulator: str, name: str) -> None:
    topology = TOPOLOGIES[name]
    torch.manual_seed(0)
    layer = LAYERS[accumulator]().double()
    x = torch.randn(topology.num_src, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_as_one_process(layer, topology, x, topology.edge_data["weight"].double(), 4)


def test_edges_that_are_overwritten_before_the_backward_are_refused() -> None:
    topology = random_topology(20, 100)
    layer = Reduced(4, "sum")

    def work(workers: Workers) -> None:
        part = part_topology(topology, workers)
        out = layer(part, torch.ones(part.num_dst, 4, requires_grad=True))
        part.indices.mul_(1 << 20)
        with pytest.raises(LayerError, match="edges of a topology were overwritten"):
            out.sum().backward()

    in_threads(work, 2)


class RecordedWorkers(ThreadedWorkers):
    """A worker that notes when its transfers begin and end."""

    def __init__(self, rank: int, size: int, queues: Queues) -> None:
        super().__init__(rank, size, queues)
        self.events: list[str] = []

    def begin(self, sends: Any, receives: Any, doing: str, **options: Any) -> Callable[..., None]:
        self.events.append(f"begin {doing}")
        finish = super().begin(sends, receives, doing, **options)

        def noted() -> None:
            finish()
            self.events.append(f"end {doing}")

        return noted


ROWS, GRADIENTS = "exchanging rows of the halo", "exchanging gradients of the halo"


def test_edges_inside_the_part_are_gathered_while_rows_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, layer = random_topology(60, 300), Reduced(4, "sum")
    passes: dict[int, tuple[RecordedWorkers, str]] = {}
    run = naive.run

    def noted(function: Any, edges: Topology, *arguments: Any, **more: Any) -> tuple[Tensor, ...]:
        workers, name = passes[id(edges)]
        workers.events.append(f"{name} edges at {function.at}")
        return run(function, edges, *arguments, **more)

    monkeypatch.setattr(naive, "run", noted)

    def work(workers: RecordedWorkers) -> list[str]:
        part = part_topology(topology, workers)
        edges = part.remote
        passes.update({id(edges.inner): (workers, "inner"), id(edges.outer): (workers, "outer")})
        workers.events.clear()
        layer(part, torch.ones(part.num_given, 4, requires_grad=True)).sum().backward()
        return workers.events

    for found in in_threads(work, 2, RecordedWorkers):
        assert found == [
            *(f"begin {ROWS}", "inner edges at dst", f"end {ROWS}", "outer edges at dst"),
            *("outer edges at src", f"begin {GRADIENTS}", "inner edges at src"),
            *("outer edges at dst", "inner edges at dst", f"end {GRADIENTS}"),
        ]


def test_edge_data_that_change_are_read_anew() -> None:
    topology, layer = random_topology(60, 300), Reduced(4, "sum")
    x = torch.linspace(-1, 1, 240).reshape(60, 4)
    expected = layer(topology.with_edge_data(weight=2 * topology.edge_data["weight"]), x)

    def work(workers: Workers) -> Tensor:
        part = part_topology(topology.with_edge_data(weight=topology.edge_data["weight"].clone()), workers)
        rows = x[part.remote.part.vertices]
        layer(part, rows)
        part.edge_data["weight"].mul_(2)
        return layer(part, rows)

    # Each worker changes the slice that is its own.
    assert_close(torch.cat(in_threads(work, 2)).detach(), expected.detach())


@pytest.mark.parametrize("accumulator", ["max", "min"])
def test_of_equal_extrema_the_first_edge_in_the_graph_gets_the_gradient(accumulator: str) -> None:
    topology = random_topology(60, 300)
    assert_as_one_process(Reduced(4, accumulator), topology, torch.ones(60, 4), torch.ones(topology.num_edges), 2)
