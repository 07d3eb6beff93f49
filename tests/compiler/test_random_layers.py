"""Layers that nobody wrote: Hypothesis draws ApplyEdge from the supported operators, ApplyVertex, and a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sagann.compiler import CompilerOptions
from sagann.graph import Topology
from sagann.runtime.in_memory.engine import CompiledEngine
from tests.compiler.layers import Layer, assert_compiles_right
from tests.graphs import topology_of

Expression = Callable[[Layer, Any], Tensor]

LEAVES: list[Expression] = [
    lambda m, e: e.src,
    lambda m, e: e.dst,
    lambda m, e: e.src @ m.w,
    lambda m, e: F.linear(e.dst, m.w, m.v),
    lambda m, e: F.linear(torch.cat([e.src, e.dst], -1), m.wide)[:, 1:5],
    lambda m, e: e.data[:, None] * e.src,
    lambda m, e: e.data.unsqueeze(-1).expand(-1, 4) + m.v,
    lambda m, e: m.v * e.src,
    lambda m, e: e.dst * m.a + m.b,
    lambda m, e: torch.cat([e.src[:, 2:], 2 * e.dst[:, :2]], 1),
    lambda m, e: torch.relu(F.linear(e.src, m.w)),
    lambda m, e: F.linear(torch.cat([e.src, torch.ones_like(e.dst)], -1), m.wide)[:, :4],
]
UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.exp,
    torch.neg,
    lambda x: F.leaky_relu(x, 0.2),
    F.elu,
    F.gelu,
    F.silu,
    F.softplus,
    torch.abs,
    lambda x: torch.log(x.abs() + 0.5),
    lambda x: torch.sqrt(x.abs() + 0.5),
    lambda x: torch.rsqrt(x.abs() + 0.5),
    lambda x: x.clamp(-1, 1),
    lambda x: x.pow(2),
    lambda x: (x.abs() + 0.5) ** 1.5,
    lambda x: x.amin(-1, keepdim=True) + x,
    lambda x: torch.softmax(x, -1),
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x.amax(-1, keepdim=True) * x,
    lambda x: x.sum(-1, keepdim=True).expand(-1, 4),
    lambda x: torch.softmax(x.view(-1, 2, 2), 1).flatten(1),
    lambda x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
    lambda x: torch.cat([x[:, 1::2], x[:, ::2]], 1),
    lambda x: torch.stack([x[:, 0], x[:, 3], x[:, 1], x[:, 2]], 1),
    lambda x: x.masked_fill(x > 0.5, 0.25),
    lambda x: torch.where(x > 1.0000001, x, 1.0000002 * x),
]
MAPS: list[Callable[[Layer, Tensor], Tensor]] = [
    lambda m, x: F.linear(x, m.w, m.v),
    lambda m, x: x @ m.w,
    lambda m, x: (x @ m.v)[:, None] * x,
    lambda m, x: F.linear(x.view(-1, 2, 2), m.wide[:2, 2:4]).flatten(1),
    # Not fused.
    lambda m, x: torch.cumsum(x, -1),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    lambda x, y: x / (y.abs() + 1),
    torch.maximum,
    torch.minimum,
    lambda x, y: torch.where(x > y, x, 0.5 * y),
    lambda x, y: (x * y).sum(-1, keepdim=True) * x,
    lambda x, y: (x.view(-1, 2, 2) @ y.view(-1, 2, 2)).flatten(1),
]
VERTEX: list[Callable[..., Tensor]] = [
    lambda m, v, a: a,
    lambda m, v, a: a @ m.w,
    lambda m, v, a: F.linear(a, m.w[:1], m.b) + v[:, :1],
    lambda m, v, a: torch.relu(F.linear(m.a * v + a, m.w[:2])),
    lambda m, v, a: torch.cat([v, a], 1) @ m.wide.T,
    # What the edges may read as well.
    lambda m, v, a: a + F.linear(v, m.w),
    lambda m, v, a: torch.relu(F.linear(v, m.w)) * a + v,
]


def _extend(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def unary(function: Callable[[Tensor], Tensor], x: Expression) -> Expression:
        return lambda m, e: function(x(m, e))

    def binary(function: Callable[[Tensor, Tensor], Tensor], x: Expression, y: Expression) -> Expression:
        return lambda m, e: function(x(m, e), y(m, e))

    def mapped(function: Callable[[Layer, Tensor], Tensor], x: Expression) -> Expression:
        return lambda m, e: function(m, x(m, e))

    return st.one_of(
        st.builds(unary, st.sampled_from(UNARY), inner),
        st.builds(mapped, st.sampled_from(MAPS), inner),
        st.builds(binary, st.sampled_from(BINARY), inner, inner),
    )


expressions = st.recursive(st.sampled_from(LEAVES), _extend, max_leaves=4)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    num_vertices = draw(st.integers(1, 9))
    ids = st.integers(0, num_vertices - 1)
    return topology_of(draw(st.lists(st.tuples(ids, ids), max_size=30)), num_vertices)


def in_order(accum: Tensor, degree: int) -> Tensor:
    """One row of what concat gave, to which every slot contributes differently."""
    slots = accum.unflatten(1, (degree or 1, 4))
    return (slots * torch.arange(1, 1 + (degree or 1), dtype=accum.dtype)[:, None]).sum(1)


def check(
    message: Expression,
    score: Expression,
    vertex: Any,
    accumulator: str,
    topology: Topology,
    seed: int,
    engine: Any,
) -> None:
    def heads(m: Layer, e: Any) -> tuple[Tensor, Tensor]:
        return score(m, e)[:, :2].tanh(), message(m, e).view(-1, 2, 2)

    if accumulator == "concat":
        degree = int(topology.in_degrees().max()) + seed % 2
        layer = Layer(message, lambda m, v, a: vertex(m, v, in_order(a, degree)), "concat", max_degree=degree or 1)
    elif accumulator == "softmax":
        layer = Layer(heads, lambda m, v, a: vertex(m, v, a.flatten(1)), accumulator="softmax")
    else:
        layer = Layer(message, vertex, accumulator=accumulator)
    x = torch.randn(topology.num_src, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert_compiles_right(layer.double(), topology, 0.5 * x, engine=engine)


ACCUMULATORS = st.sampled_from(["sum", "mean", "max", "min", "softmax", "concat"])


@settings(max_examples=25)
@given(
    expressions, expressions, st.sampled_from(VERTEX), ACCUMULATORS, topologies(), st.integers(0, 99), st.booleans()
)
def test_a_random_layer_equals_the_naive_one(
    message: Expression,
    score: Expression,
    vertex: Any,
    accumulator: str,
    topology: Topology,
    seed: int,
    optimised: bool,
) -> None:
    off = CompilerOptions(hoist=False, split_concat=False, commute=False)
    engine = CompiledEngine(dialect="naive", options=None if optimised else off, tile_edges=11)
    check(message, score, vertex, accumulator, topology, seed, engine)


@pytest.mark.thorough
@settings(max_examples=20)
@given(expressions, expressions, st.sampled_from(VERTEX), ACCUMULATORS, topologies(), st.integers(0, 99))
def test_a_random_layer_in_generated_kernels(
    message: Expression, score: Expression, vertex: Any, accumulator: str, topology: Topology, seed: int
) -> None:
    check(message, score, vertex, accumulator, topology, seed, CompiledEngine())
