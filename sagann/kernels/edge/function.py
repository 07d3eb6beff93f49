"""EdgeFunction: the loads, operations and reductions of one pass over the edges. The input of every kernel dialect.

A pass goes over the edges grouped by destination (``at="dst"``, CSC) or by source (``at="src"``, CSR). For every edge the pass
loads rows of its inputs, computes ops on them, and reduces the outputs to one row per group. Rows have a feature shape, without
the dimension of the edges; ``()`` is a scalar per edge. Values broadcast as in PyTorch, from the right.

Invariants (:func:`verify`): names are unique; an op reads only earlier values; shapes follow from the op's arguments; every
reduction gets the number of values that it takes.

References:
    Ma et al., NGra, 2018, Sec. 3.3: the fused Scatter-ApplyEdge-Gather. We differ: a pass is data, not a template, and its
    backward is a pass of the same form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch

from sagann.kernels.edge.reductions import Reduction, reduction

Shape = tuple[int, ...]
Side = Literal["src", "dst", "edge", "param"]
"The row that an edge reads: of its source, of its destination, or its own. A parameter has no rows."
Arg = str | float | int | bool

_FUNCTIONS = ["exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos"]
UNARY = frozenset(["neg", "abs", "reciprocal", "relu", "sign", "floor", "detach", "not", *_FUNCTIONS])
BINARY = frozenset(
    ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne", "and", "or"]
)
COMPARISONS = frozenset(["lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"])
STRUCTURAL = frozenset(["reshape", "broadcast", "permute", "slice", "cat"])
REDUCTIONS = frozenset(["sum", "amax", "amin"])
OPS = UNARY | BINARY | STRUCTURAL | REDUCTIONS | {"where", "cast", "full", "random", "edge_id"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """An array that the pass reads."""

    name: str
    "Unique name."
    side: Side
    "The row that an edge reads."
    shape: Shape
    "Feature shape of a row; shape of a parameter."
    dtype: torch.dtype
    "float32, float64, float16, bfloat16, bool, or an integer type. The array may have another integer type."


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One operation on rows.

    ``attrs`` by op: permute has dims; slice has dim, start and step; cat has dim; sum, amax and amin have dims, which leave
    the shape; random has p and salt. Other ops have none. reshape, broadcast and full take their shape from ``shape``, cast
    takes its type from ``dtype``, and the one argument of full is a constant. random gives 0 with probability p, else
    1 / (1 - p), the same in every pass of one seed. edge_id gives the edge's position in CSC order, an int64 scalar.
    """

    name: str
    "Unique name of the result."
    op: str
    "One of OPS."
    args: tuple[Arg, ...]
    "Names of values, or constants."
    shape: Shape
    "Feature shape of the result."
    dtype: torch.dtype
    "Type of the result: torch.bool for comparisons."
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    "Attributes of the op, by name."


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A value that a pass reduces.

    The pass returns the tensors of the reduction's state (:mod:`sagann.kernels.edge.reductions`), [rows, *shape] each. Ids of
    edges are -1 in rows without edges, and int32 where int32 holds every id, else int64. Exceptions: ``edge`` returns
    [num_edges, *shape] in CSC order, ``total`` returns the sum over all edges, [*shape].
    """

    reduce: str
    "Name of a reduction."
    values: tuple[str, ...]
    "Name of the value, or names of score and value, as the reduction takes them."

    @property
    def reduction(self) -> Reduction:
        """The record of the reduction."""
        return reduction(self.reduce)


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class EdgeFunction:
    """A pass over the edges. Functions are compared by identity, so that kernels can be kept by function."""

    inputs: tuple[Input, ...]
    "Arrays that the pass loads."
    ops: tuple[Op, ...]
    "Operations, in order."
    outputs: tuple[Output, ...]
    "Values that the pass reduces."
    at: Literal["dst", "src"]
    "The end of the edges by which the pass groups them."

    def value(self, name: str) -> Input | Op:
        """The input or op of that name."""
        return next(value for value in self.values if value.name == name)

    @property
    def values(self) -> tuple[Input | Op, ...]:
        """Inputs and ops, in order."""
        return (*self.inputs, *self.ops)

    @property
    def random(self) -> bool:
        """Whether the pass needs a seed."""
        return any(op.op == "random" for op in self.ops)

    @property
    def numbers_edges(self) -> bool:
        """Whether the results depend on the edges' ids."""
        return any(op.op in ("random", "edge_id") for op in self.ops) or any(
            output.reduction.names_edges for output in self.outputs
        )

    @property
    def asks_for_ids(self) -> bool:
        """Whether a pass that does not go in CSC order needs the edges' ids."""
        return self.numbers_edges or any(output.reduction.rows == "edge" for output in self.outputs)


def read_names(function: EdgeFunction) -> list[list[str]]:
    """For each output, the names of the inputs that its backward passes read. Names of several outputs are numbered."""
    several = len(function.outputs) > 1
    return [
        [f"{read.name}_{number}" if several else read.name for read in output.reduction.reads]
        for number, output in enumerate(function.outputs)
    ]


def verify(function: EdgeFunction) -> None:
    """Assert the invariants of an edge function."""
    shapes: dict[str, Shape] = {}
    for value in function.values:
        assert value.name not in shapes
        if isinstance(value, Op):
            assert value.op in OPS, value
            given = [shapes[arg] if isinstance(arg, str) else () for arg in value.args]
            assert value.shape == shape_of(value.op, given, value.attrs, value.shape), value
            assert value.dtype == torch.bool or value.op not in COMPARISONS, value
        shapes[value.name] = value.shape
    for output in function.outputs:
        assert len(output.values) == output.reduction.num_values, output
        # The score's shape begins the value's.
        first, last = shapes[output.values[0]], shapes[output.values[-1]]
        assert last[: len(first)] == first, output


def shape_of(op: str, shapes: list[Shape], attrs: Mapping[str, Any], stated: Shape) -> Shape:
    """The feature shape that follows from an op's arguments; ``stated`` where the op itself states its shape."""
    if op == "edge_id":
        return ()
    if op in ("full", "random"):
        return stated
    if op == "reshape":
        return stated if math.prod(stated) == math.prod(shapes[0]) else shapes[0]
    if op == "broadcast":
        return tuple(torch.broadcast_shapes(shapes[0], stated))
    if op == "permute":
        return tuple(shapes[0][dim] for dim in attrs["dims"])
    if op == "slice":
        dim, rest = attrs["dim"], stated[attrs["dim"]]
        last = attrs["start"] + (rest - 1) * attrs["step"]
        fits = attrs["start"] >= 0 and last < shapes[0][dim]
        return (*shapes[0][:dim], rest if fits else -1, *shapes[0][dim + 1 :])
    if op == "cat":
        dim = attrs["dim"]
        return (*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])
    if op in REDUCTIONS:
        return tuple(size for dim, size in enumerate(shapes[0]) if dim not in attrs["dims"])
    return tuple(torch.broadcast_shapes(*shapes))
