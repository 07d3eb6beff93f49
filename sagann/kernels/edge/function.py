"""EdgeFunction: the loads, operations and reductions of one pass over the edges. The input of every kernel dialect.

A pass goes over the edges grouped by destination (``at="dst"``, CSC) or by source (``at="src"``, CSR). For every edge the pass
loads rows of its inputs, computes ops on them, and reduces the outputs to one row per group. Rows have a feature shape, without
the dimension of the edges; ``()`` is a scalar per edge. Values broadcast as in PyTorch, from the right.

A row's features are lanes. Where no op moves values between lanes, a kernel does a wide row tile by tile, so that accumulators and
operands stay in registers (:attr:`EdgeFunction.feature_width`). Otherwise rows are resident: all lanes at once.

Invariants (:func:`verify`): names are unique; an op reads only earlier values; shapes follow from the op's arguments; every
reduction gets the number of values that it takes.

References:
    Ma et al., NGra, 2018, Sec. 3.3: the fused Scatter-ApplyEdge-Gather. We differ: a pass is data, not a template, and its
    backward is a pass of the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import torch

from sagann.kernels.edge.reductions import Reduction, reduction

Shape = tuple[int, ...]
Side = Literal["src", "dst", "edge", "param"]
"The row that an edge reads: of its source, of its destination, or its own. A parameter has no rows."
End = Literal["src", "dst"]
Arg = str | float | int | bool

_FUNCTIONS = ["exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos"]
UNARY = frozenset(["neg", "abs", "reciprocal", "sign", "floor", "detach", "not", *_FUNCTIONS])
BINARY = frozenset(
    ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne", "and", "or"]
)
COMPARISONS = frozenset(["lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"])
STRUCTURAL = frozenset(["reshape", "broadcast", "permute", "slice", "cat"])
REDUCTIONS = frozenset(["sum", "amax", "amin"])
OPS = UNARY | BINARY | STRUCTURAL | REDUCTIONS | {"where", "cast", "full", "random", "edge_id"}

KINDS = {
    torch.float32: "f4",
    torch.float64: "f8",
    torch.float16: "f2",
    torch.bfloat16: "bf",
    torch.int32: "i4",
    torch.int64: "i8",
    torch.bool: "b1",
}
"Kind of lanes in memory by dtype."


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A tensor that a pass writes."""

    rows: str
    'The tensor\'s rows: "row" for one per group, "edge" for one per edge, "item" for one per work item, then summed.'
    shape: Shape
    "Feature shape."
    dtype: torch.dtype | None
    "float32 or float64; None for ids of edges."
    neutral: float
    "Number in every entry before the first edge."

    def full_shape(self, num_rows: int) -> tuple[int, ...]:
        """Shape of a tensor that edges are reduced to, over so many groups."""
        return self.shape if self.rows == "item" else (num_rows, *self.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeFunction:
    """A pass over the edges. Functions are compared by identity; derived results are computed once, and kept with their function."""

    inputs: tuple[Input, ...]
    "Arrays that the pass loads."
    ops: tuple[Op, ...]
    "Operations, in order."
    outputs: tuple[Output, ...]
    "Values that the pass reduces."
    at: End
    "The end of the edges by which the pass groups them."
    _derived: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    def derived(self, key: object, build: Callable[[], Any]) -> Any:
        """The result of ``build``, which runs at the first call; kept with this function."""
        if key not in self._derived:
            self._derived[key] = build()
        return self._derived[key]

    def value(self, name: str) -> Input | Op:
        """The input or op of that name."""
        return next(value for value in self.values if value.name == name)

    @cached_property
    def values(self) -> tuple[Input | Op, ...]:
        """Inputs and ops, in order."""
        return (*self.inputs, *self.ops)

    @cached_property
    def random(self) -> bool:
        """Whether the pass needs a seed."""
        return any(op.op == "random" for op in self.ops)

    @cached_property
    def numbers_edges(self) -> bool:
        """Whether the results depend on the edges' ids."""
        return any(op.op in ("random", "edge_id") for op in self.ops) or any(
            output.reduction.names_edges for output in self.outputs
        )

    @property
    def asks_for_ids(self) -> bool:
        """Whether a pass that does not go in CSC order needs the edges' ids."""
        return self.numbers_edges or any(output.reduction.rows == "edge" for output in self.outputs)

    @cached_property
    def is_empty(self) -> bool:
        """Whether a value has no features, so that there is nothing to compute."""
        return any(0 in value.shape for value in self.values)

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """The tensors that a pass writes, in order."""
        results: list[Result] = []
        for output in self.outputs:
            value, reduction = self.value(output.values[-1]), output.reduction
            # A total has a term for every edge of the graph.
            is_wide = kind_of(value) == "f8" or reduction.rows == "item"
            dtype = torch.float64 if is_wide else torch.float32
            shapes = {"value": value.shape, "score": self.value(output.values[0]).shape, "row": ()}
            results += [
                Result(
                    rows=reduction.rows,
                    shape=shapes[part.of],
                    dtype=None if part.is_edge else dtype,
                    neutral=part.neutral,
                )
                for part in reduction.state
            ]
        return tuple(results)

    @cached_property
    def reduced_results(self) -> tuple[Result, ...]:
        """The tensors that edges are reduced to: the state of a gather."""
        return tuple(result for result in self.results if result.rows != "edge")

    @cached_property
    def feature_width(self) -> int | None:
        """Number of lanes of every value with more than one lane, where lane i depends on lanes i alone; else None."""
        widths = {lanes(value) for value in self.values} - {1}
        if len(widths) != 1 or any(map(self._moves_lanes, self.ops)):
            return None
        return widths.pop()

    def _moves_lanes(self, op: Op) -> bool:
        if op.op in REDUCTIONS or op.op == "slice":
            return lanes(op) != lanes(self.value(str(op.args[0])))
        if op.op == "permute":
            shape = self.value(str(op.args[0])).shape
            # Lanes stay where only dimensions of size 1 change their place.
            order = [dim for dim in op.attrs["dims"] if shape[dim] != 1]
            return order != sorted(order)
        # With a single width, the other structural ops copy all lanes or spread one lane.
        return op.op == "cat" and len(op.args) > 1


def lanes(value: Input | Op) -> int:
    """Number of features of a row."""
    return math.prod(value.shape)


def kind_of(value: Input | Op) -> str:
    """Kind of a value's lanes in registers. Half precision is widened when a kernel loads the value."""
    kind = KINDS[value.dtype]
    return "f4" if kind in ("f2", "bf") else kind


def placed(outputs: Iterable[Output]) -> Iterator[tuple[Output, slice]]:
    """Each output, and the places of its tensors among the tensors of all these outputs."""
    first = 0
    for output in outputs:
        last = first + len(output.reduction.state)
        yield output, slice(first, last)
        first = last


def merged_results(function: EdgeFunction) -> Iterator[tuple[Reduction, slice]]:
    """The reduction of each output with a row per group, and the places of its tensors among all results."""
    for output, here in placed(function.outputs):
        if output.reduction.rows == "row":
            yield output.reduction, here


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
