"""Edge functions for tests: a few that are known, and random ones from everything that the language has."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from sagann.graph import Topology
from sagann.kernels.edge.function import COMPARISONS, EdgeFunction, Input, Op, Output, Shape, shape_of, verify

SMOOTH_UNARY = ["neg", "abs", "exp", "expm1", "log1p", "tanh", "sigmoid", "erf", "sign", "detach", "sin", "cos"]
POSITIVE_UNARY = ["log", "sqrt", "rsqrt", "reciprocal"]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum"]


class Builder:
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        self.dtype = dtype
        self.inputs: list[Input] = []
        self.ops: list[Op] = []

    def input(self, side: Any, shape: Shape, dtype: torch.dtype | None = None) -> str:
        name = f"{side}{len(self.inputs)}"
        self.inputs.append(Input(name=name, side=side, shape=shape, dtype=dtype or self.dtype))
        return name

    def op(
        self, op: str, *args: Any, shape: Shape | None = None, dtype: torch.dtype | None = None, **attrs: Any
    ) -> str:
        """Add an op, its shape being what follows from the arguments; its name."""
        shapes = [self.shape(arg) if isinstance(arg, str) else () for arg in args]
        dtype = torch.bool if op in COMPARISONS else dtype or self.dtype
        name = f"t{len(self.ops)}"
        followed = shape_of(op, shapes, attrs, shape if shape is not None else ())
        self.ops.append(Op(name=name, op=op, args=args, shape=followed, dtype=dtype, attrs=MappingProxyType(attrs)))
        return name

    def shape(self, name: str) -> Shape:
        return next(value.shape for value in (*self.inputs, *self.ops) if value.name == name)

    def function(self, *outputs: tuple[str, ...], at: Any = "dst") -> EdgeFunction:
        made = tuple(Output(reduce=reduce, values=tuple(values)) for reduce, *values in outputs)
        function = EdgeFunction(inputs=tuple(self.inputs), ops=tuple(self.ops), outputs=made, at=at)
        verify(function)
        return function


def gated(features: int, dtype: torch.dtype = torch.float32) -> EdgeFunction:
    """sigmoid(dst + src) * src."""
    make = Builder(dtype)
    dst, src, x = make.input("dst", (features,)), make.input("src", (features,)), make.input("src", (features,))
    gate = make.op("sigmoid", make.op("add", dst, src))
    return make.function(("sum", make.op("mul", gate, x)))


def attention(heads: int, features: int, dtype: torch.dtype = torch.float32) -> EdgeFunction:
    """GAT: leaky_relu of a score per head, softmax over values per head."""
    make = Builder(dtype)
    dst, src = make.input("dst", (heads,)), make.input("src", (heads,))
    value = make.input("src", (heads, features))
    score = make.op("add", dst, src)
    score = make.op("where", make.op("gt", score, 0.0), score, make.op("mul", score, 0.2))
    return make.function(("softmax", score, value))


def arrays_of(function: EdgeFunction, topology: Topology, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = {"src": topology.num_src, "dst": topology.num_dst, "edge": topology.num_edges}
    arrays = {}
    for given in function.inputs:
        shape = given.shape if given.side == "param" else (rows[given.side], *given.shape)
        if given.dtype.is_floating_point:
            arrays[given.name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(given.dtype)
        else:
            arrays[given.name] = torch.randint(-3, 4, shape, generator=generator).to(given.dtype)
    return arrays


@st.composite
def functions(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> EdgeFunction:
    """Random functions: inputs on all sides, a dozen ops, several outputs."""
    make = Builder(dtype)
    # A lane more than whole registers, and than tiles of one to eight of them.
    one_head = [(1, features) for features in (1, 5, 16, 17, 33, 41, 65, 150)]
    heads, features = draw(st.sampled_from([*one_head, (3, 4), (8, 8), (2, 16), (5, 7)]))
    shapes: list[Shape] = (
        [(), (features,)] if heads == 1 else [(), (heads,), (heads, features), (heads * features,), (heads, 1)]
    )
    values = [make.input(side, draw(st.sampled_from(shapes))) for side in ("src", "dst", "edge", "param", "src")]
    for _ in range(draw(st.integers(1, 10))):
        values.append(_random_op(draw, make, values))
    reduces = st.sampled_from(["sum", "sum", "max", "min", "edge", "total", "softmax"])
    outputs: list[tuple[str, ...]] = []
    at = draw(st.sampled_from(["dst", "src"]))
    for value in [values[-1], *draw(st.lists(st.sampled_from(values), max_size=2))]:
        reduce = draw(reduces)
        outputs.append((reduce, *_scored(draw, make, value), value) if reduce == "softmax" else (reduce, value))
    return make.function(*outputs, at=at)


def _scored(draw: st.DrawFn, make: Builder, value: str) -> tuple[str]:
    """A score whose shape begins the value's."""
    begin = make.shape(value)[: draw(st.integers(0, len(make.shape(value))))]
    return (make.input("src", begin),)


def _random_op(draw: st.DrawFn, make: Builder, values: list[str]) -> str:
    value = draw(st.sampled_from(values))
    shape = make.shape(value)
    choices: list[Callable[[], str]] = [
        lambda: make.op(draw(st.sampled_from(SMOOTH_UNARY)), make.op("minimum", value, 3.0)),
        lambda: make.op(draw(st.sampled_from(POSITIVE_UNARY)), make.op("add", make.op("abs", value), 0.5)),
        lambda: _random_binary(draw, make, value, values),
        # Two of them differ in the eighth digit.
        lambda: make.op("mul", value, draw(st.sampled_from([0.5, -2.0, 3, 1.0000001, 1.0000002]))),
        lambda: make.op("sub", 1.5, value),
        lambda: make.op("random", shape=shape, p=0.3, salt=draw(st.integers(0, 3))),
        lambda: make.op("full", 0.25, shape=shape),
        lambda: make.op("where", make.op("lt", value, 0.1), value, 0.5),
    ]
    if shape:
        dim = draw(st.integers(0, len(shape) - 1))
        halved = (*shape[:dim], (shape[dim] + 1) // 2, *shape[dim + 1 :])
        choices += [
            lambda: make.op(draw(st.sampled_from(["sum", "amax", "amin"])), value, dims=(dim,)),
            lambda: make.op("sum", value, dims=tuple(range(len(shape)))),
            lambda: make.op("reshape", value, shape=(math.prod(shape),)),
            lambda: make.op("permute", value, dims=tuple(reversed(range(len(shape))))),
            lambda: make.op("cat", value, value, dim=dim),
            lambda: make.op("slice", value, shape=halved, dim=dim, start=0, step=min(2, shape[dim])),
        ]
    return draw(st.sampled_from(choices))()


def _random_binary(draw: st.DrawFn, make: Builder, value: str, values: list[str]) -> str:
    def fits(other: str) -> bool:
        try:
            torch.broadcast_shapes(make.shape(value), make.shape(other))
        except RuntimeError:
            return False
        return True

    other = draw(st.sampled_from([other for other in values if fits(other)]))
    op = draw(st.sampled_from(BINARY))
    if op == "div":
        other = make.op("add", make.op("abs", other), 1.0)
    return make.op(op, value, other)
