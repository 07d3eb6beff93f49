"""Which end of the edges is mapped by type: whichever moves fewer bytes in the topology at hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError
from sagann.graph import Topology
from sagann.graph.feature_store import declare_constant
from sagann.kernels.dense import typed_linear
from sagann.runtime.in_memory import engine as engine_module
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.in_memory.typed_maps import count_pairs, moved_bytes, pairs_of
from sagann.saga import Edge, NaiveEngine, SagaLayer, using_engine
from tests.compiler.layers import Ordered, results
from tests.graphs import odd_topologies, rows, topology_of
from tests.tolerances import assert_close, largest


class Relational(SagaLayer):
    edge_data = "type"

    def __init__(self, dim_in: int, dim_out: int, num_types: int = 3, accumulator: str = "mean") -> None:
        super().__init__()
        self.accumulator = accumulator
        self.maps = nn.Parameter(torch.randn(num_types, dim_in, dim_out, dtype=torch.float64))

    def apply_edge(self, edge: Edge) -> Tensor:
        return typed_linear(edge.src, edge.data, self.maps)


def test_types_that_begin_alike_in_memory_are_told_apart() -> None:
    plain = in_star(2)
    types = torch.arange(plain.num_edges) % 2
    topology = plain.with_edge_data(type=types, first=types[:1].expand(plain.num_edges))
    x = rows(topology, 4)
    for name in ("type", "first"):
        layer = type("Named", (Relational,), {"edge_data": name})(4, 3, num_types=2)
        with using_engine(NaiveEngine()):
            expected = layer(topology, x)
        with using_engine(CompiledEngine()):
            assert_close(layer(topology, x), expected)


def out_star(num_types: int = 3) -> Topology:
    """One source of every type, and a pair of destination and type for every edge."""
    return topology_of([(0, v % 40) for v in range(120)], 40, types=num_types)


def in_star(num_types: int = 3) -> Topology:
    """The same, reversed."""
    return topology_of([(v % 40, 0) for v in range(120)], 40, types=num_types)


def orders_run(
    layer: SagaLayer, topology: Topology, x: Tensor, monkeypatch: pytest.MonkeyPatch, engine: CompiledEngine
) -> list[str]:
    """The orders of the programs that ran, forward and backward, and that they equal the naive layer."""
    ran: list[str] = []
    original = engine_module.edges_of_pairs

    def noted(program: Any, *arguments: Any) -> Any:
        ran.append(program.typed.order)
        return original(program, *arguments)

    monkeypatch.setattr(engine_module, "edges_of_pairs", noted)
    expected, other, upstream = results(NaiveEngine(), layer, topology, x)
    actual, mine, _ = results(engine, layer, topology, x, upstream)
    assert_close(actual, expected)
    for name, gradient in mine.items():
        assert_close(gradient, other[name], scale=largest(*other.values()))
    return ran


@pytest.mark.parametrize(
    ("topology", "dim_in", "dim_out", "order"),
    [
        (out_star(), 4, 4, "first"),
        (in_star(), 4, 4, "last"),
        (odd_topologies(types=3)["skewed"], 32, 2, "first"),
        (odd_topologies(types=3)["skewed"], 2, 32, "last"),
        (odd_topologies(types=3)["no edges"], 4, 4, "first"),
    ],
    ids=["few sources", "few destinations", "narrower", "wider", "no edges"],
)
@pytest.mark.parametrize("accumulator", ["sum", "mean"])
def test_the_cheaper_order_runs(
    topology: Topology, dim_in: int, dim_out: int, order: str, accumulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Relational(dim_in, dim_out, accumulator=accumulator)
    engine = CompiledEngine(dialect="naive")
    assert orders_run(layer, topology, rows(topology, dim_in), monkeypatch, engine) == [order]


def test_the_order_is_that_of_the_topology_not_of_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, engine = Relational(4, 4), CompiledEngine(dialect="naive")
    found = [
        orders_run(layer, topology, rows(topology, 4), monkeypatch, engine)[-1]
        for topology in (out_star(), in_star(), out_star())
    ]
    assert found == ["first", "last", "first"]
    assert len(engine.programs_of(layer)) == 1


def test_the_bytes_that_decide() -> None:
    layer, topology = Relational(4, 2), odd_topologies(types=3)["multi-edges"]
    program = CompiledEngine().program(layer, rows(topology, 4).requires_grad_(), topology.edge_data["type"])
    types = topology.edge_data["type"]
    # 4 edges, each of another pair but for the fourth, whose type is that of the first.
    assert count_pairs(topology, types, 3) == {"src": 3, "dst": 3}
    # float64: rows of 32 bytes before the map, of 16 after it.
    assert moved_bytes(program, topology, types) == 4 * 16 + 3 * (3 * 32 + 16)
    assert moved_bytes(program.maps_last, topology, types) == 4 * 32 + 3 * (2 * 32 + 2 * 16)
    assert moved_bytes(program.maps_last, topology, types, kept=True) == 3 * (2 * 32 + 2 * 16)


@pytest.mark.parametrize("lean", [False, True])
def test_what_is_gathered_of_constant_rows_is_kept_for_the_maps(lean: bool) -> None:
    topology, layer = odd_topologies(types=3)["skewed"], Relational(4, 2)
    x, engine = declare_constant(rows(topology, 4)), CompiledEngine(dialect="naive", lean=lean)
    with using_engine(engine):
        first = layer(topology, x)
        (gradient,) = torch.autograd.grad(layer(topology, x).square().sum(), layer.maps)
    with using_engine(NaiveEngine()):
        expected = layer(topology, x)
        assert_close(first, expected)
        assert_close(gradient, torch.autograd.grad(expected.square().sum(), layer.maps)[0])
    num_pairs = count_pairs(topology, topology.edge_data["type"], 3)["dst"]
    assert engine.invariants.held_bytes == (0 if lean else num_pairs * 4 * 8)


def test_pairs_are_found_once_and_again_when_types_change() -> None:
    topology = odd_topologies(types=3)["skewed"]
    types = topology.edge_data["type"]
    for end in ("src", "dst"):
        pairs = pairs_of(topology, types, 3, end)
        assert pairs_of(topology, types, 3, end) is pairs
    counts = count_pairs(topology, types, 3)
    types[:] = 0
    assert count_pairs(topology, types, 3) != counts
    assert sum(pairs_of(topology, types, 3, "dst").counts[1:]) == 0


@pytest.mark.parametrize("end", ["src", "dst"])
@pytest.mark.parametrize("graph", odd_topologies())
def test_pairs_have_the_same_edges(graph: str, end: Any) -> None:
    topology = odd_topologies(types=2)[graph]
    types = topology.edge_data["type"]
    pairs = pairs_of(topology, types, 4, end)
    part = pairs.topology
    part.validate()
    pairs.members.validate()
    kinds = torch.arange(4).repeat_interleave(torch.tensor(pairs.counts))
    paired = (part.indices if end == "src" else part.edge_dst()).long()
    other = part.edge_dst() if end == "src" else part.indices
    assert torch.equal(kinds[paired], pairs.types)
    ends = (pairs.vertex[paired], other.long())
    src, dst = ends if end == "src" else ends[::-1]
    expected = sorted(zip(topology.indices.tolist(), topology.edge_dst().tolist(), types.tolist(), strict=True))
    assert sorted(zip(src.tolist(), dst.tolist(), pairs.types.tolist(), strict=True)) == expected
    assert torch.equal(pairs.vertex[pairs.members.indices.long()], pairs.members.edge_dst().long())


@pytest.mark.parametrize("order", ["cheaper", "first", "last"])
def test_a_type_out_of_range_is_refused_in_either_order(order: Any) -> None:
    topology = odd_topologies(types=3)["one hub"]
    with using_engine(Ordered(order)), pytest.raises(InputError, match="edge type out of range"):
        Relational(4, 4, num_types=2)(topology, rows(topology, 4))


def test_pairs_first_found_in_inference_mode_serve_training() -> None:
    class Scaled(Relational):
        def apply_edge(self, edge: Edge) -> Tensor:
            return typed_linear(edge.dst, edge.data, self.maps) * edge.src * (1 + edge.data[:, None])

    topology = in_star()
    layer, x = Scaled(4, 4), rows(topology, 4)
    with using_engine(CompiledEngine()):
        with torch.inference_mode():
            inferred = layer(topology, x)
        trained = layer(topology, x.clone().requires_grad_())
        trained.square().sum().backward()
    assert_close(trained, inferred)
