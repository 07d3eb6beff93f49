"""Rows of the halo and their gradients; edges inside a part are gathered while they travel. Workers are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sagann
from sagann.errors import InputError, LayerError
from sagann.graph import Graph, Topology
from sagann.kernels.edge import naive
from sagann.nn import GCN, SAGE, GatedGCN
from sagann.partition import part_of
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.workers import Workers, worker_part
from sagann.runtime.workers.halo import Halo
from sagann.saga.engine import using_engine
from tests.graphs import labelled_graph, odd_topologies, random_topology
from tests.runtime.workers.threads import Queues, ThreadedWorkers, in_threads
from tests.tolerances import assert_close

TOPOLOGIES = odd_topologies()


def halo_of(topology: Topology, workers: Workers) -> Halo:
    return Halo(part_of(topology, workers.bounds(topology.indptr), workers.rank), workers)


def part_topology(topology: Topology, workers: Workers) -> Topology:
    halo = halo_of(topology, workers)
    return halo.topology({name: rows[halo.part.edges] for name, rows in topology.edge_data.items()})


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_rows_of_the_halo_come_and_their_gradients_go_back_to_the_owners(name: str, size: int) -> None:
    topology = TOPOLOGIES[name]
    rows = torch.randn(topology.num_src, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # The loss of an edge is a number of its own times the source's row.
    factors = torch.arange(1.0, topology.num_edges + 1, dtype=torch.float64).reshape(-1, 1)
    expected = torch.zeros_like(rows).index_add_(0, topology.indices.long(), factors.expand(-1, 3))

    def work(workers: Workers) -> Tensor:
        halo = halo_of(topology, workers)
        part, own = halo.part, rows[halo.part.vertices].clone().requires_grad_()
        completed = halo.complete({"": own})[""]
        assert torch.equal(completed, torch.cat([rows[part.vertices], rows[part.halo]]))
        (completed[part.indices.long()] * factors[part.edges]).sum().backward()
        return own.grad

    assert_close(torch.cat(in_threads(work, size)), expected)


def sent_bytes(graph: Graph, layer: torch.nn.Module) -> list[tuple[int, int]]:
    """For each of two workers: bytes sent in a forward pass of a layer, and the number of rows that the other one needs."""

    def work(workers: Workers) -> tuple[int, int]:
        part = worker_part(graph, workers, opened=graph)
        before = workers.sent_bytes
        layer(part.topology, part.features.clone())
        other = part_of(graph.topology, part.bounds, 1 - workers.rank)
        return workers.sent_bytes - before, len(other.halo)

    return in_threads(work, 2)


@pytest.mark.parametrize(
    ("layer", "width"),
    [
        # A sum commutes with the linear map, so mapped rows travel, which are narrower.
        (SAGE(64, 4), 4),
        # Wider maps come after the gather.
        (SAGE(8, 64), 8),
        # The gate and the row of a source.
        (GatedGCN(8, 64), 16),
    ],
)
def test_rows_travel_once_in_the_width_that_edges_read(layer: torch.nn.Module, width: int) -> None:
    in_dim = 64 if width == 4 else 8
    topology = random_topology(60, 300)
    graph = Graph(topology=topology, features=torch.randn(60, in_dim))
    for found, num_rows in sent_bytes(graph, layer):
        assert num_rows > 0
        assert found == num_rows * width * 4


@pytest.mark.parametrize(("engine", "is_kept"), [(CompiledEngine(), True), (CompiledEngine(lean=True), False)])
def test_rows_of_constant_features_travel_once(engine: CompiledEngine, is_kept: bool) -> None:
    graph, layer = Graph(topology=random_topology(60, 300), features=torch.randn(60, 8)), GatedGCN(8, 64)

    def work(workers: Workers) -> tuple[list[int], list[Tensor]]:
        part, sent, results = worker_part(graph, workers, opened=graph), [], []
        with using_engine(engine):
            for _ in range(3):
                before = workers.sent_bytes
                results.append(layer(part.topology, part.features).detach())
                sent.append((workers.sent_bytes - before) // 4)
        return sent, results

    for sent, results in in_threads(work, 2):
        # The gate travels in every pass, and beside it at first the features, which are as wide.
        assert sent == [sent[0], sent[0] // 2, sent[0] // 2] if is_kept else [sent[0]] * 3
        assert all(torch.equal(each, results[0]) for each in results)


def test_a_layer_is_called_with_the_rows_of_own_vertices() -> None:
    graph = GCN.prepare(labelled_graph())

    def work(workers: Workers) -> None:
        part = worker_part(graph, workers, opened=graph)
        num_own, num_src = part.topology.num_dst, part.topology.num_src
        assert num_own < num_src
        with pytest.raises(InputError, match=rf"expected a tensor \[{num_own}, F\]"):
            GCN(8, 3)(part.topology, torch.zeros(num_src, 8))

    in_threads(work, 2)


def test_a_second_derivative_is_refused() -> None:
    topology = random_topology(20, 60)

    def work(workers: Workers) -> None:
        part = part_topology(topology, workers)
        own = torch.ones(part.num_given, 1, requires_grad=True)
        completed = part.remote.complete({"": own})[""]
        (grad,) = torch.autograd.grad((completed**2).sum(), own, create_graph=True)
        with pytest.raises(InputError, match="a gradient of a gradient was asked for"):
            grad.sum().backward()

    in_threads(work, 2)


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


class Reduced(sagann.SagaLayer):
    """A message of both ends, data and a parameter, reduced by one accumulator or by several."""

    edge_data = "weight"

    def __init__(self, width: int, accumulator: Any) -> None:
        super().__init__()
        self.accumulator = accumulator
        self.shift = nn.Parameter(torch.linspace(-1, 1, width))

    def apply_edge(self, edge: sagann.Edge) -> Tensor:
        return torch.sigmoid(edge.src * edge.data[:, None] + edge.dst + self.shift) * edge.src


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
