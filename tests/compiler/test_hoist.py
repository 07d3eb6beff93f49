"""The frontier between the work of vertices and the work of edges."""

from __future__ import annotations

from typing import Any

import torch

from sagann.compiler.hoist import hoist
from sagann.compiler.rewrite import gather_of
from sagann.nn import GAT, GatedGCN
from tests.compiler.graphs import traced
from tests.compiler.layers import Layer


def read(layer: Any, dim: int = 4, **options: bool) -> list[str]:
    return [node.name for node in hoist(gather_of(traced(layer, dim)), **options) if node.meta["parameter"] is None]


def test_matrix_products_leave_the_edges() -> None:
    assert read(GatedGCN(4, 3)) == ["src", "linear", "add"]


def test_scores_of_attention_are_read_not_computed() -> None:
    assert read(GAT(4, 2, num_heads=3)) == ["linear_1", "linear_3", "view"]


def test_a_cheap_widening_stays_on_the_edges() -> None:
    assert read(Layer(lambda m, e: torch.cat([e.src, 2 * e.src, e.src.relu()], 1) * e.data[:, None])) == [
        "src",
        "data",
    ]


def test_a_costly_function_leaves_even_if_its_operand_is_read() -> None:
    assert read(Layer(lambda m, e: torch.exp(e.src) * e.src * e.data[:, None])) == ["data", "mul"]
    assert read(Layer(lambda m, e: torch.exp(e.src) * e.dst + e.src * e.data[:, None])) == [
        "src",
        "dst",
        "data",
        "exp",
    ]


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
