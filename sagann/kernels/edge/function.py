"""EdgeFunction: what one pass over the edges loads, computes and reduces. The input of every kernel dialect.

A pass goes over the edges grouped by destination (``at="dst"``, CSC) or by source (``at="src"``, CSR). For every
edge it loads rows of its inputs, computes ops on them, and reduces the outputs to one row per group. Rows have a
feature shape, without the dimension of the edges; ``()`` is a scalar per edge. Values broadcast as in PyTorch,
from the right.

Invariants (:func:`verify`): names are unique; an op reads only what stands before it; shapes follow from the op's
arguments; every reduction gets as many values as it takes.

References:
    Ma et al., NGra, 2018, Sec. 3.3: the fused Scatter-ApplyEdge-Gather. We differ in that the pass is data, not a
    template, and that its backward is a pass of the same form.
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
"Which row an edge reads: its source's, its destination's, its own; a parameter has no rows."
Arg = str | float | int | bool

UNARY = frozenset(
    [
        "neg",
        "abs",
        "exp",
        "expm1",
        "log",
        "log1p",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "tanh",
        "sigmoid",
        "relu",
        "erf",
        "sign",
        "floor",
        "sin",
        "cos",
        "detach",
        "not",
    ]
)
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
    "End or kind of the row that an edge reads."
    shape: Shape
    "Feature shape of a row; of a parameter, its shape."
    dtype: torch.dtype
    "float32, float64, float16, bfloat16, bool, or an integer type; an array may have another integer type."


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One operation on rows.

    ``attrs`` by op: reshape, broadcast and full: none (the shape says it; full's one argument is the constant);
    permute: dims; slice: dim, start, step; cat: dim; sum, amax, amin: dims (removed from the shape); cast: none
    (the dtype says it); random: p and salt: 0 with probability p, else 1 / (1 - p), the same in every pass of
    one seed; edge_id: none; no arguments, an int64 scalar, the edge's position in CSC order.
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
    "What the op needs besides arguments."


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A value reduced, and what the pass returns for it.

    ``sum``: [rows, *shape]. ``max``, ``min``: the extremum and the id of the first edge in CSC order that attains it
    (-1 without edges; int32 where that holds every id, else int64): two tensors. ``softmax``: the weighted sum, the largest
    score, and the sum of the exponentials of the scores less the largest, both of the score's shape (-inf and 0
    without edges): three tensors. ``edge``: not reduced, [num_edges, *shape] in CSC order.
    ``total``: summed over all edges, [*shape].
    """

    reduce: str
    "How the rows of a group become one: the name of a reduction."
    values: tuple[str, ...]
    "The value, or score and value, as the reduction takes them."

    @property
    def reduction(self) -> Reduction:
        """The record of the reduction."""
        return reduction(self.reduce)

    @property
    def num_results(self) -> int:
        """How many tensors the pass returns for it."""
        return len(self.reduction.state)


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class EdgeFunction:
    """A pass over the edges; compared by identity, so that kernels can be kept with it."""

    inputs: tuple[Input, ...]
    "What it loads."
    ops: tuple[Op, ...]
    "What it computes, in order."
    outputs: tuple[Output, ...]
    "What it reduces."
    at: Literal["dst", "src"]
    "End whose edges form a group."

    def value(self, name: str) -> Input | Op:
        """The input or op of that name."""
        return next(value for value in self.values if value.name == name)

    @property
    def values(self) -> tuple[Input | Op, ...]:
        """Inputs and ops, in order."""
        return (*self.inputs, *self.ops)

    @property
    def content(self) -> tuple[object, ...]:
        """All of it, to be compared."""
        return (*self.values, *self.outputs, self.at)

    @property
    def random(self) -> bool:
        """Whether the pass needs a seed."""
        return any(op.op == "random" for op in self.ops)

    @property
    def numbers_edges(self) -> bool:
        """Whether what it gives depends on the edges' ids."""
        return any(op.op in ("random", "edge_id") for op in self.ops) or any(
            output.reduction.names_edges for output in self.outputs
        )

    @property
    def asks_for_ids(self) -> bool:
        """Whether a pass that does not go in CSC order has to know which edge is which."""
        of_edges = any(output.reduction.rows == "edge" for output in self.outputs)
        return self.numbers_edges or of_edges


def read_names(function: EdgeFunction) -> list[list[str]]:
    """What the backward reads for each output, by the names of its passes' inputs; numbered where there are several."""
    several = len(function.outputs) > 1
    return [
        [f"{read.name}_{number}" if several else read.name for read in output.reduction.reads]
        for number, output in enumerate(function.outputs)
    ]


def verify(function: EdgeFunction) -> None:
    """Check the invariants of an edge function.

    Raises:
        ValueError: one does not hold; the message names the value.
    """
    known: dict[str, Input | Op] = {}
    for value in function.values:
        if value.name in known:
            raise ValueError(f"value '{value.name}' is defined twice")
        if isinstance(value, Op):
            _verify_op(value, known)
        known[value.name] = value
    for output in function.outputs:
        if missing := [name for name in output.values if name not in known]:
            raise ValueError(f"output reads the undefined value '{missing[0]}'")
        if len(output.values) != output.reduction.num_values:
            raise ValueError(f"reduction '{output.reduce}' cannot take {len(output.values)} values")
        if len(output.values) > 1:
            score, weighted = (known[name].shape for name in output.values)
            if weighted[: len(score)] != score:
                raise ValueError(f"score {list(score)} does not begin value {list(weighted)}")


def _verify_op(op: Op, known: Mapping[str, Input | Op]) -> None:
    if op.op not in OPS:
        raise ValueError(f"value '{op.name}': unknown op '{op.op}'")
    if missing := [arg for arg in op.args if isinstance(arg, str) and arg not in known]:
        raise ValueError(f"value '{op.name}' reads '{missing[0]}', which does not stand before it")
    shapes = [known[arg].shape if isinstance(arg, str) else () for arg in op.args]
    if (expected := shape_of(op.op, shapes, op.attrs, op.shape)) != op.shape:
        raise ValueError(f"value '{op.name}' = {op.op}: shape {list(op.shape)}, expected {list(expected)}")
    if op.op in COMPARISONS and op.dtype != torch.bool:
        raise ValueError(f"value '{op.name}' = {op.op}: dtype {op.dtype}, expected torch.bool")


def shape_of(op: str, shapes: list[Shape], attrs: Mapping[str, Any], stated: Shape) -> Shape:
    """The feature shape that follows from an op's arguments; ``stated`` where the op takes its shape as given."""
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
