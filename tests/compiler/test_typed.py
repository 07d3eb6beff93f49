"""Maps picked by edge type leave the edges, to pairs of source and type or to pairs of destination and type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from sagann.compiler import CompilerOptions, LayerProgram
from sagann.compiler.explain import explain
from sagann.errors import InputError
from sagann.graph import Topology
from sagann.kernels.dense import typed_linear
from sagann.nn import GGNN
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import Edge, SagaLayer, using_engine
from tests.compiler.layers import Ordered, assert_compiles_right, compiled_right, program_of
from tests.graphs import odd_topologies, rows, skewed


@pytest.mark.parametrize("num_types", [1, 3])
def test_a_map_of_what_typed_maps_gave(num_types: int) -> None:
    class Narrowed(GGNN):
        def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
            return accum @ self.gru.weight_ih.T[:, :2]

    compiled_right(Narrowed(4, num_types).double(), skewed(types=num_types))


@pytest.mark.parametrize("num_types", [1, 2])
def test_a_type_out_of_range_is_refused(num_types: int) -> None:
    topology = odd_topologies(types=3)["one hub"]
    with using_engine(CompiledEngine()), pytest.raises(InputError, match="edge type out of range"):
        GGNN(4, num_types)(topology, torch.zeros(topology.num_src, 4))


ORDERS: list[Any] = ["cheaper", "first", "last"]
Number = Callable[[Any], Tensor]
NUMBERS: dict[str, Number] = {
    "of the source": lambda e: e.src[:, :1],
    "of the destination": lambda e: torch.sigmoid(e.dst[:, 1:2]),
    "of both": lambda e: torch.sigmoid((e.src * e.dst).sum(-1, keepdim=True)),
    "of the type": lambda e: 1 / (1 + e.data[:, None].to(e.src.dtype)),
}
COMBINATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "row": lambda row, number: row,
    "row * number": lambda row, number: row * number,
    "number * row": lambda row, number: number * row,
    "row / number": lambda row, number: row / (number.abs() + 1),
    "not linear": lambda row, number: torch.relu(row) * number,
    "more than the row": lambda row, number: row * number + number,
}
ROWS: dict[str, Callable[[Any], Tensor]] = {
    "source": lambda e: e.src,
    "tanh": lambda e: torch.tanh(e.src),
    "destination": lambda e: e.dst,
    "tanh of destination": lambda e: torch.tanh(2 * e.dst),
    "two of source": lambda e: torch.cat([e.src[:, :2], e.src[:, :2] * e.src[:, 2:]], 1),
}
VERTEX: dict[str, Callable[..., Tensor]] = {
    "accum": lambda m, v, a: a,
    "map": lambda m, v, a: m.gate(v) + a @ m.square,
    "cat": lambda m, v, a: torch.cat([v, a.tanh()], 1),
}


class Drawn(SagaLayer):
    """A typed map of 4 to 3 features in a message that a test puts together."""

    edge_data = "type"

    def __init__(self, num_types: int, row: str, number: str, combined: str, vertex: str, accumulator: str) -> None:
        super().__init__()
        self.row, self.number, self.combined, self.vertex = row, number, combined, vertex
        self.accumulator = accumulator
        generator = torch.Generator().manual_seed(2)
        self.maps = nn.Parameter(torch.randn(num_types, 4, 3, generator=generator))
        self.square = nn.Parameter(torch.randn(3, 3, generator=generator))
        self.gate = nn.Linear(4, 3)

    def apply_edge(self, edge: Edge) -> Any:
        mapped = typed_linear(ROWS[self.row](edge), edge.data, self.maps)
        message = COMBINATIONS[self.combined](mapped, NUMBERS[self.number](edge))
        return (torch.tanh(edge.src[:, 0]), message) if self.accumulator == "softmax" else message

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return VERTEX[self.vertex](self, vertex, accum)


@st.composite
def typed_topologies(draw: st.DrawFn, num_types: int) -> Topology:
    """With fewer destinations than sources as well, and types that no edge has."""
    num_src = draw(st.integers(1, 9))
    num_dst = draw(st.integers(1, num_src))
    ends = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1), st.integers(0, num_types - 1))
    src, dst, types = torch.tensor(draw(st.lists(ends, max_size=30)), dtype=torch.int64).reshape(-1, 3).T
    return Topology.from_coo(src=src, dst=dst, num_src=num_src, num_dst=num_dst, edge_data={"type": types})


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Drawn, Topology]:
    num_types = draw(st.integers(1, 4))
    parts = [draw(st.sampled_from(sorted(choices))) for choices in (ROWS, NUMBERS, COMBINATIONS, VERTEX)]
    accumulator = draw(st.sampled_from(["sum", "sum", "mean", "mean", "max", "softmax"]))
    return Drawn(num_types, *parts, accumulator).double(), draw(typed_topologies(num_types))


@settings(max_examples=25)
@given(drawn(), st.sampled_from(ORDERS), st.booleans())
def test_a_random_typed_layer_equals_the_naive_one(
    layer_and_topology: tuple[Drawn, Topology], order: Any, fuse: bool
) -> None:
    layer, topology = layer_and_topology
    engine = Ordered(order, dialect="naive", options=CompilerOptions(fuse=fuse))
    assert_compiles_right(layer, topology, rows(topology), engine=engine)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("dim_in", "dim_out"), [(0, 3), (4, 0)])
def test_rows_without_features(dim_in: int, dim_out: int, order: Any) -> None:
    class Plain(SagaLayer):
        edge_data = "type"

        def __init__(self) -> None:
            super().__init__()
            self.maps = nn.Parameter(torch.ones(2, dim_in, dim_out, dtype=torch.float64))

        def apply_edge(self, edge: Edge) -> Tensor:
            return typed_linear(edge.src, edge.data, self.maps)

    topology = skewed(types=2)
    assert_compiles_right(Plain(), topology, rows(topology, dim_in), engine=Ordered(order))


def compiled(combined: str, accumulator: str = "sum", number: str = "of both", **options: Any) -> LayerProgram:
    layer = Drawn(3, "source", number, combined, "accum", accumulator).double()
    topology, engine = skewed(types=3), CompiledEngine(options=CompilerOptions(**options))
    made: LayerProgram = program_of(layer, topology, rows(topology), engine)
    return made


@pytest.mark.parametrize(
    ("combined", "number"), list(zip(["row", "row * number", "number * row", "row / number"], NUMBERS, strict=True))
)
def test_what_is_linear_in_the_mapped_row_may_be_mapped_last(number: str, combined: str) -> None:
    made = compiled(combined, number=number)
    assert made.typed.order == "first"
    assert made.maps_last.typed.order == "last"
    assert made.maps_last.edges.function is not None


@pytest.mark.parametrize("combined", COMBINATIONS)
@pytest.mark.parametrize("accumulator", ["sum", "mean"])
@pytest.mark.parametrize("num_types", [1, 3])
def test_maps_of_destinations_leave_the_edges_of_a_sum(num_types: int, accumulator: str, combined: str) -> None:
    layer = Drawn(num_types, "tanh of destination", "of both", combined, "map", accumulator).double()
    made = compiled_right(layer, skewed(types=num_types), dialect="naive")
    assert made.edges.function is not None
    assert made.maps_last is None
    assert made.typed.order == ("none" if num_types == 1 else "first")
    assert f"once per {'' if num_types == 1 else 'pair of '}destination" in explain(made)


@pytest.mark.parametrize("accumulator", ["max", "softmax"])
def test_maps_of_destinations_stay_on_the_edges_of_other_accumulators(accumulator: str) -> None:
    layer = Drawn(3, "destination", "of both", "row", "accum", accumulator).double()
    made = compiled_right(layer, skewed(types=3), dialect="naive")
    assert made.typed is None
    assert made.edges.function is None


def test_one_of_two_maps_leaves_the_edges() -> None:
    class Both(Drawn):
        def apply_edge(self, edge: Edge) -> Tensor:
            return typed_linear(edge.dst, edge.data, self.maps) + typed_linear(edge.src, edge.data, 2 * self.maps)

    layer = Both(3, "source", "of both", "row", "accum", "mean").double()
    made = compiled_right(layer, skewed(types=3), dialect="naive")
    assert made.typed.end == "src"


def test_a_mean_in_half_precision_is_not_taken_of_sums() -> None:
    layer, topology = Drawn(2, "source", "of both", "row", "accum", "mean").half(), skewed(types=2)
    made = program_of(layer, topology, rows(topology).half(), CompiledEngine())
    assert made.maps_last is None


@pytest.mark.parametrize(
    ("combined", "accumulator"), [("not linear", "sum"), ("more than the row", "mean"), ("row * number", "max")]
)
def test_what_is_not_linear_in_it_is_mapped_first(combined: str, accumulator: str) -> None:
    made = compiled(combined, accumulator)
    assert made.typed.order == "first"
    assert made.maps_last is None


def test_maps_that_may_not_commute_run_first() -> None:
    made = compiled("row", commute=False)
    assert made.typed == compiled("row").typed
    assert made.maps_last is None


def test_both_orders_and_their_bytes_are_explained() -> None:
    said = explain(compiled("row * number"))
    assert "maps by edge type: 3 maps, once per pair of source and type  [test_typed.py:" in said
    # Rows of float64: 4 features before the map, 3 after it; both ends' rows make the number.
    assert "before: 88 bytes per edge and 184 per pair of source and type\n" in said
    assert "after: 64 bytes per edge and 176 per pair of destination and type\n" in said
    assert "once per pair of destination and type, after the gather" in explain(compiled("row").maps_last)
