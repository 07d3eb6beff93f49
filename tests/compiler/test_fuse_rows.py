"""Work of vertices, pointwise or within their rows, in one pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sagann.compiler import CompilerOptions
from sagann.runtime.in_memory.engine import CompiledEngine
from tests.compiler.layers import Layer, compiled_right, program_of
from tests.graphs import rows, skewed


def gate(m: Any, v: Any, a: Any) -> Any:
    chosen = torch.sigmoid(F.linear(v, m.w, m.v))
    return chosen * torch.tanh(a) + (1 - chosen) * v


VERTEX: dict[str, Any] = {
    "gate": gate,
    "slices": lambda m, v, a: torch.sigmoid(v[:, 1:3] + a[:, :2]) * v[:, 2:] + a[:, 3:],
    "parameters": lambda m, v, a: F.gelu(m.a * v + m.v) * m.b + torch.where(a > m.v, a, v),
    "two regions": lambda m, v, a: F.linear((v * a + v).tanh() * a, m.w).sigmoid().mul(v).add(a),
    "heads": lambda m, v, a: (v.view(-1, 2, 2) * m.v.view(2, 2)).mean(-1) * a[:, :2].amax(-1, True) * a[:, 2:],
    "several dimensions": lambda m, v, a: (v.view(-1, 2, 2) * a.view(-1, 2, 2)).mean((1, 2))[:, None] * a * v,
    "no feature": lambda m, v, a: (v * a * m.v).tanh().sum(-1),
    "extrema": lambda m, v, a: (v.amax(-1, True) * a.amin(1, True) * m.v).sigmoid() * a,
    "another type": lambda m, v, a: v.sum(-1, keepdim=True, dtype=torch.float64).exp() * a.tanh() * m.v,
    "a chain": lambda m, v, a: F.elu(F.silu(a * 2) - 1).exp().sqrt(),
}


def regions(layer: Layer, **options: Any) -> list[str]:
    program = program_of(layer, skewed(), rows(skewed()), CompiledEngine(options=CompilerOptions(**options)))
    return [note.text for note in program.notes if "over the vertices" in note.text]


@pytest.mark.parametrize(
    ("name", "dialect"),
    [*((name, "naive") for name in VERTEX), *((name, "auto") for name in ("gate", "slices", "heads"))],
)
def test_a_region_equals_its_operators(name: str, dialect: str) -> None:
    layer = Layer(vertex=VERTEX[name]).double()
    assert len(regions(layer)) == 1 + (name == "two regions")
    compiled_right(layer, dialect=dialect)


def test_ties_share_a_gradient_and_nan_spreads() -> None:
    x = rows(skewed()).round()
    x[7, 2] = float("nan")
    layer = Layer(vertex=VERTEX["extrema"]).double()
    assert (x == x.amax(1, True)).sum(1).max() > 1
    compiled_right(layer, x=x)


# What rows of other types and reductions of other dimensions read is left to PyTorch, what is around them fused.
OTHER: dict[str, Any] = {
    "half": lambda m, v, a: v[:, :1].half().sum(-1, keepdim=True, dtype=torch.float64) * a.exp().tanh() * v,
    "wide half": lambda m, v, a: (v.half().mean(-1, keepdim=True, dtype=torch.float64) * a + v).tanh() * v,
    "bool": lambda m, v, a: torch.where((v > 0).amax(-1, keepdim=True), a, v).tanh() * a.exp(),
    "transposed": lambda m, v, a: v.t().sum(0)[:, None] * a.tanh().exp() * v,
}


@pytest.mark.parametrize("name", OTHER)
def test_reductions_that_are_not_lowered_stay_outside(name: str) -> None:
    layer = Layer(vertex=OTHER[name]).double()
    (text,) = regions(layer)
    assert not {"sum", "mean", "amax"} & set(text.split(", "))
    compiled_right(layer)


def test_what_saves_little_is_left_to_pytorch() -> None:
    assert regions(Layer(vertex=lambda m, v, a: a + m.v)) == []
    assert regions(Layer(vertex=lambda m, v, a: F.relu(a + v))) == []


def test_scores_of_heads_are_one_pass_for_each_end() -> None:
    """The attention as most write it: a product with a parameter, summed within each head."""

    def edge(m: Any, e: Any) -> Any:
        value, other = e.src.view(-1, 2, 2), e.dst.view(-1, 2, 2)
        score = (value * m.w[:2, :2]).sum(-1) + (other * m.w[2:, 2:]).sum(-1)
        return F.leaky_relu(score), value

    layer = Layer(edge, lambda m, v, a: a.flatten(1), accumulator="softmax").double()
    texts = regions(layer)
    assert texts == ["mul, sum, in one pass over the vertices"] * 2
    compiled_right(layer)


def test_random_and_unknown_operators_stay_outside() -> None:
    def vertex(m: Any, v: Any, a: Any) -> Any:
        return (F.dropout(a * v, 0.5) + torch.special.i0(a)).tanh() * a + v

    # What is around them is one pass.
    assert regions(Layer(vertex=vertex).double()) == ["add, tanh, mul, add, in one pass over the vertices"]


def test_regions_can_be_switched_off() -> None:
    assert regions(Layer(vertex=gate).double(), fuse=False) == []
