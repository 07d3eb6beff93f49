"""What leaves the edges: hoisting along the cheapest cut, maps that commute, are split, and are shared by both ends."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st

from sagann.compiler.commute import commute, scale_last, split_concat
from sagann.compiler.hoist import hoist, min_cut
from sagann.compiler.nodes import gather_of, linear_parts
from sagann.compiler.operators import GATHER
from sagann.nn import GAT, GCN, GIN, CommNet, GatedGCN
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import using_engine
from tests.compiler.layers import Layer, compiled_right, program_of, targets, traced, verify
from tests.graphs import rows, skewed, topology_of


def read(layer: Any, dim: int = 4, **options: bool) -> list[str]:
    return [node.name for node in hoist(gather_of(traced(layer, dim)), **options) if node.meta["parameter"] is None]


def test_matrix_products_leave_the_edges() -> None:
    assert read(GatedGCN(4, 3)) == ["src", "linear", "add"]


def test_scores_of_attention_are_read_not_computed() -> None:
    assert read(GAT(4, 2, num_heads=3)) == ["linear_1", "linear_3", "view"]


def test_a_cheap_widening_stays_on_the_edges() -> None:
    widened = Layer(lambda m, e: torch.cat([e.src, 2 * e.src, e.src.relu()], 1) * e.data[:, None])
    assert read(widened) == ["src", "data"]


def test_a_costly_function_leaves_even_if_its_operand_is_read() -> None:
    assert read(Layer(lambda m, e: torch.exp(e.src) * e.src * e.data[:, None])) == ["data", "mul"]
    both = Layer(lambda m, e: torch.exp(e.src) * e.dst + e.src * e.data[:, None])
    assert read(both) == ["src", "dst", "data", "exp"]


def test_two_cheap_rows_of_one_source_are_made_on_the_edges() -> None:
    assert read(Layer(lambda m, e: 2 * e.src * e.dst + (e.src + 1) * e.data[:, None])) == ["src", "dst", "data"]


def test_nothing_is_hoisted_when_told_so() -> None:
    assert read(GatedGCN(4, 3), enabled=False) == ["src", "dst"]


@torch.library.custom_op("sagann_tests::maximum", mutates_args=())
def maximum(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.matrix_exp(x[:, :, None] * x[:, None]).amax(2)


@maximum.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_of_others_is_costly_whatever_its_name() -> None:
    def edge(m: Layer, e: Any) -> torch.Tensor:
        return torch.cat([e.src, torch.ops.sagann_tests.maximum(e.src)], 1) * e.data[:, None]

    assert read(Layer(edge)) != ["src", "data"]


def widths_gathered(module: Any) -> list[int]:
    return [node.meta["val"].shape[-1] for node in module.graph.nodes if node.target is GATHER]


@pytest.mark.parametrize(
    ("layer", "gathered"),
    [(GCN(8, 4), 4), (GCN(4, 8), 4), (CommNet(8, 4), 4), (GIN(8, 6), 8), (GatedGCN(8, 4), 8)],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else str(value),
)
def test_the_narrower_row_travels(layer: Any, gathered: int) -> None:
    dim = next(p for p in layer.parameters() if p.ndim == 2).shape[1]
    module = traced(layer, dim)
    notes = commute(module, keep_constant=False)
    verify(module)
    assert widths_gathered(module) == [gathered]
    assert len(notes) == (gathered != dim)


def test_a_map_that_widens_in_apply_edge_goes_last() -> None:
    module = traced(Layer(lambda m, e: F.linear(e.src, m.wide.T) * e.data[:, None]), 6)
    assert widths_gathered(module) == [8]
    (note,) = commute(module, keep_constant=False)
    verify(module)
    assert widths_gathered(module) == [6]
    assert "6 features per edge instead of 8" in note.text


def test_what_is_gathered_from_constant_rows_stays_free_of_parameters() -> None:
    module = traced(GCN(8, 4), 8)
    assert commute(module, keep_constant=True) == []
    module = traced(Layer(lambda m, e: F.linear(e.src, m.w)))
    (note,) = commute(module, keep_constant=True)
    assert "the gather is constant" in note.text


def test_what_a_parameter_scales_beside_constant_rows_is_mapped_first() -> None:
    module = traced(GIN(8, 4), 8)
    (note,) = commute(module, keep_constant=True)
    assert "4 features per edge instead of 8" in note.text
    (note,) = scale_last(module)
    verify(module)
    assert "scaled afterwards" in note.text
    operands = [node.args[0] for node in module.graph.nodes if linear_parts(node)]
    assert [row.meta["place"] for row in operands if row.op == "placeholder"] == ["src", "dst"]
    assert commute(traced(GIN(8, 6), 8), keep_constant=True) == []


def test_with_many_sources_no_map_moves_to_them() -> None:
    assert commute(traced(GCN(8, 4), 8), keep_constant=False, map_first=False) == []


@pytest.mark.parametrize("accumulator", ["max", "min"])
def test_only_linear_accumulators_commute(accumulator: str) -> None:
    layer = Layer(None, lambda m, v, a: F.linear(a, m.w[:1]), accumulator=accumulator)
    assert commute(traced(layer), keep_constant=False) == []


@pytest.mark.parametrize(
    "vertex",
    [lambda m, v, a: F.linear(a.relu(), m.w[:1]), lambda m, v, a: F.linear(a, m.w[:1]) + a[:, :1]],
    ids=["not linear", "read twice"],
)
def test_a_gather_with_another_reader_stays(vertex: Any) -> None:
    assert commute(traced(Layer(None, vertex)), keep_constant=False) == []


def test_a_linear_map_of_a_concatenation_is_split() -> None:
    module = traced(Layer(lambda m, e: torch.tanh(F.linear(torch.cat([e.src, e.dst], -1), m.wide, m.wide[:, 0]))))
    assert "linear" in targets(module, "edge")
    (note,) = split_concat(module)
    verify(module)
    assert note.kind == "split"
    assert targets(module, "edge") == ["add", "tanh"]
    assert targets(module, "src") == ["linear", "add"]
    assert targets(module, "dst") == ["linear"]


def test_what_is_the_same_in_every_row_joins_a_term_of_one_end() -> None:
    def edge(m: Layer, e: Any) -> torch.Tensor:
        ones = torch.ones_like(e.src[:, :1])
        return torch.tanh(F.linear(torch.cat([ones, e.dst, ones, e.src[:, :2]], -1), m.wide))

    module = traced(Layer(edge))
    (note,) = split_concat(module)
    verify(module)
    assert note.text.endswith("(constant, dst, src)")
    assert targets(module, "edge") == ["add", "tanh"]
    compiled_right(Layer(edge).double())


def test_a_concatenation_of_one_end_is_left_alone() -> None:
    assert split_concat(traced(Layer(lambda m, e: F.linear(torch.cat([e.src, e.src], -1), m.wide)))) == []


RANDOM: dict[str, Any] = {
    "dropout": lambda m, e: F.linear(e.src, F.dropout(m.w)) - F.linear(e.dst, F.dropout(m.w)),
    "drawn": lambda m, e: (
        e.src @ torch.randn(4, 4, dtype=e.src.dtype) - e.dst @ torch.randn(4, 4, dtype=e.src.dtype)
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_two_random_parameters_are_not_one(name: str) -> None:
    topology = topology_of([(vertex, vertex) for vertex in range(5)], 5)
    layer, x = Layer(RANDOM[name]), torch.randn(5, 4)
    assert program_of(layer, topology, x, CompiledEngine()).shared == ()
    with using_engine(CompiledEngine()):
        assert (layer(topology, x).abs() > 0.01).any()


def test_different_projections_of_the_ends_are_not_shared() -> None:
    layer = Layer(lambda m, e: torch.tanh(F.linear(e.src, m.w) + F.linear(e.dst, m.w.t()))).double()
    assert program_of(layer, skewed(), rows(skewed()), CompiledEngine()).shared == ()


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, list[int]], set[int]]:
    size = draw(st.integers(1, 7))
    costs = {node: draw(st.integers(0, 5)) for node in range(size)}
    operands = {node: draw(st.lists(st.integers(0, node - 1), unique=True)) if node else [] for node in range(size)}
    return costs, operands, draw(st.sets(st.integers(0, size - 1), min_size=1))


def separates(chosen: set[int], operands: dict[int, list[int]], readers: set[int]) -> bool:
    pending = [node for node in readers if node not in chosen]
    while pending:
        node = pending.pop()
        if not operands[node]:
            return False
        pending += [operand for operand in operands[node] if operand not in chosen]
    return True


@given(graphs())
def test_the_cut_is_the_cheapest(graph: tuple[dict[int, int], dict[int, list[int]], set[int]]) -> None:
    costs, operands, readers = graph
    chosen = min_cut(costs, operands, readers)
    subsets = itertools.chain.from_iterable(itertools.combinations(costs, count) for count in range(len(costs) + 1))
    cheapest = min(sum(costs[n] for n in subset) for subset in subsets if separates(set(subset), operands, readers))
    assert separates(chosen, operands, readers)
    assert sum(costs[node] for node in chosen) == cheapest


def test_of_equal_cuts_the_one_near_the_reader_is_taken() -> None:
    assert min_cut({"x": 4, "y": 4}, {"x": [], "y": ["x"]}, {"y"}) == {"y"}
