"""Edges inside a part are gathered while the halo's rows travel, with the numbers of one process; workers are threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sagann
from sagann.errors import LayerError
from sagann.graph import Topology
from sagann.nn import GatedGCN
from sagann.partition import part_of
from sagann.runtime.in_memory import apart
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.workers import Workers
from sagann.runtime.workers.part_apart import PartApart, RowsOfHalo
from sagann.runtime.workers.part_topology import Halo, PartTopology
from sagann.saga.engine import using_engine
from tests.graphs import odd_topologies, random_topology
from tests.runtime.workers.threads import Queues, ThreadedWorkers, in_threads
from tests.tolerances import assert_close

TOPOLOGIES = odd_topologies()


class Weighted(sagann.SagaLayer):
    """The sum of a vertex's in-neighbours, weighted."""

    accumulator = "sum"
    edge_data = "weight"

    def apply_edge(self, edge: sagann.Edge) -> Tensor:
        return edge.src * edge.data[:, None]

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


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
        str(names): lambda names=names: Reduced(4, names)
        for names in ("sum", "mean", "var", "std", "mul", ("mean", "std", "sum"))
    },
}


def part_topology(topology: Topology, workers: Workers) -> PartTopology:
    part = part_of(topology, workers.bounds(topology.indptr), workers.rank)
    data = {name: rows[part.edges] for name, rows in topology.edge_data.items()}
    return PartTopology(part, Halo(part, workers), data)


def gradients(
    layer: sagann.SagaLayer, topology: Topology, x: Tensor, weight: Tensor, upstream: Tensor
) -> dict[str, Tensor]:
    """The layer's result, and gradients of rows, edge data and parameters."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = layer(topology.with_edge_data(weight=weight), x)
    wanted = {"x": x, "weight": weight, **dict(layer.named_parameters())}
    found = torch.autograd.grad(out, list(wanted.values()), upstream)
    return {"out": out.detach(), **dict(zip(wanted, found, strict=True))}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("accumulator", LAYERS)
def test_results_and_gradients_are_those_of_one_process(accumulator: str, name: str, size: int) -> None:
    topology = TOPOLOGIES[name]
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    layer = LAYERS[accumulator]().double()
    x = torch.randn(topology.num_src, 4, dtype=torch.float64, generator=generator)
    weight = topology.edge_data["weight"].double()
    expected = gradients(
        layer, topology, x, weight, torch.ones_like(layer(topology.with_edge_data(weight=weight), x))
    )

    def work(workers: Workers) -> dict[str, Tensor]:
        part = part_topology(topology, workers)
        assert part.apart() is not None
        rows = part.part.vertices
        own = torch.ones(part.num_dst, *expected["out"].shape[1:], dtype=torch.float64)
        return gradients(layer, part, x[rows], weight[part.part.edges], own)

    found = in_threads(work, size)
    for key in ("out", "x", "weight"):
        assert_close(torch.cat([each[key] for each in found]), expected[key])
    for key, _ in layer.named_parameters():
        assert_close(torch.stack([each[key] for each in found]).sum(0), expected[key])


def test_edges_that_are_overwritten_before_the_backward_are_refused() -> None:
    topology = random_topology(20, 100)
    layer = Weighted()

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

    def begin(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Tensor],
        doing: str,
        *,
        timeout_s: float | None = None,
    ) -> Callable[[], None]:
        self.events.append(f"begin {doing}")
        finish = super().begin(sends, receives, doing, timeout_s=timeout_s)

        def noted() -> None:
            finish()
            self.events.append(f"end {doing}")

        return noted


def recorded_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[RecordedWorkers, PartTopology], None]:
    """Note each pass over edges among the events of the worker that runs it. The result enters a worker and its part."""
    of_part: dict[int, RecordedWorkers] = {}
    names: dict[int, str] = {}
    run = apart.run_pass

    def noted(dialect: Any, function: Any, edges: Topology, *arguments: Any, **more: Any) -> tuple[Tensor, ...]:
        of_part[id(edges)].events.append(f"{names[id(edges)]} edges at {function.at}")
        return run(dialect, function, edges, *arguments, **more)

    def enter(workers: RecordedWorkers, part: PartTopology) -> None:
        edges = part.apart()
        assert edges is not None
        for name, each in (("inner", edges.inner), ("outer", edges.outer)):
            of_part[id(each)], names[id(each)] = workers, name

    monkeypatch.setattr(apart, "run_pass", noted)
    return enter


ROWS, GRADIENTS = "exchanging rows of the halo", "exchanging gradients of the halo"


@pytest.mark.parametrize(
    ("layer", "backward"),
    [
        (
            Weighted(),
            ["outer edges at src", f"begin {GRADIENTS}", "inner edges at src", f"end {GRADIENTS}"],
        ),
        (
            Reduced(4, "sum"),
            [
                "outer edges at src",
                f"begin {GRADIENTS}",
                "inner edges at src",
                "outer edges at dst",
                "inner edges at dst",
                f"end {GRADIENTS}",
            ],
        ),
    ],
)
def test_edges_inside_the_part_are_gathered_while_rows_travel(
    layer: sagann.SagaLayer, backward: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = random_topology(60, 300)
    enter = recorded_passes(monkeypatch)

    def work(workers: RecordedWorkers) -> tuple[list[str], list[str]]:
        part = part_topology(topology, workers)
        enter(workers, part)
        workers.events.clear()
        out = layer(part, torch.ones(part.num_given, 4, requires_grad=True))
        forward = list(workers.events)
        workers.events.clear()
        out.sum().backward()
        return forward, workers.events

    for forward, found in in_threads(work, 2, RecordedWorkers):
        assert forward == [f"begin {ROWS}", "inner edges at dst", f"end {ROWS}", "outer edges at dst"]
        assert found == backward


def test_edge_data_that_change_are_read_anew() -> None:
    topology, layer = random_topology(60, 300), Reduced(4, "sum")
    x = torch.linspace(-1, 1, 240).reshape(60, 4)
    expected = layer(topology.with_edge_data(weight=2 * topology.edge_data["weight"]), x)

    def work(workers: Workers) -> Tensor:
        part = part_topology(topology.with_edge_data(weight=topology.edge_data["weight"].clone()), workers)
        rows = x[part.part.vertices]
        layer(part, rows)
        part.edge_data["weight"].mul_(2)
        return layer(part, rows)

    # Each worker changes the slice that is its own.
    assert_close(torch.cat(in_threads(work, 2)).detach(), expected.detach())


@pytest.mark.parametrize("accumulator", ["max", "min"])
def test_of_equal_extrema_the_first_edge_in_the_graph_gets_the_gradient(accumulator: str) -> None:
    topology = random_topology(60, 300)
    layer = Reduced(4, accumulator)
    x, weight = torch.ones(60, 4), torch.ones(topology.num_edges)
    expected = gradients(layer, topology, x, weight, torch.ones(60, 4))

    def work(workers: Workers) -> dict[str, Tensor]:
        part = part_topology(topology, workers)
        ones = torch.ones(part.num_dst, 4)
        return gradients(layer, part, x[part.part.vertices], weight[part.part.edges], ones)

    found = in_threads(work, 2)
    for key in ("out", "x", "weight"):
        assert_close(torch.cat([each[key] for each in found]), expected[key])


def test_the_rows_of_the_halo_are_not_held_where_the_backward_does_not_read_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology, layer = random_topology(60, 300), Weighted()
    coming: list[Any] = []
    begin = PartApart.begin

    def watched(edges: PartApart, rows: Mapping[str, Tensor], *, keeps: bool) -> RowsOfHalo:
        coming.append(begin(edges, rows, keeps=keeps))
        return coming[-1]

    monkeypatch.setattr(PartApart, "begin", watched)

    def work(workers: Workers) -> None:
        part = part_topology(topology, workers)
        layer(part, torch.ones(part.num_given, 4, requires_grad=True)).sum().backward()

    in_threads(work, 2)
    assert len(coming) == 2
    assert not any(each._found for each in coming)


def test_the_structure_of_the_edges_is_kept_where_edge_data_change() -> None:
    topology = random_topology(60, 300)

    def work(workers: Workers) -> None:
        weight = torch.rand(topology.num_edges)
        part = part_topology(topology, workers)
        weighted = part.with_edge_data(weight=weight[part.part.edges].clone())
        before = weighted.apart()
        assert before is not None
        out_edges = before.inner.csr()
        weighted.edge_data["weight"].mul_(2)
        after = weighted.apart()
        assert after is not None
        assert after.inner.csr() is out_edges
        for edges in (after.inner, after.outer):
            assert edges.edge_ids is not None
            assert torch.equal(edges.edge_data["weight"], weighted.edge_data["weight"][edges.edge_ids])
        more = weighted.with_edge_data(other=weight[part.part.edges]).apart()
        assert more is not None
        assert more.outer.indices is after.outer.indices
        assert set(more.outer.edge_data) == {"weight", "other"}

    in_threads(work, 2)


@pytest.mark.parametrize("engine", [CompiledEngine(), CompiledEngine(lean=True)])
def test_constant_features_and_rows_that_change_travel_together(engine: CompiledEngine) -> None:
    topology, layer = random_topology(60, 300), GatedGCN(4, 8)
    features = sagann.graph.declare_constant(torch.randn(60, 4))
    expected = layer(topology, features)

    def work(workers: Workers) -> list[Tensor]:
        part = part_topology(topology, workers)
        own = sagann.graph.declare_constant(features[part.part.vertices].clone())
        with using_engine(engine):
            return [layer(part, own).detach() for _ in range(2)]

    found = in_threads(work, 2)
    for turn in range(2):
        assert_close(torch.cat([each[turn] for each in found]), expected.detach())


def test_one_worker_alone_gathers_all_edges_at_once() -> None:
    topology = random_topology(60, 300)

    def work(workers: Workers) -> None:
        assert part_topology(topology, workers).apart() is None

    in_threads(work, 1)
