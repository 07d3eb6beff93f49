"""Facts of an edge function that every dialect needs: kinds and lanes of its values, and the tensors that a pass writes.

A row's features are lanes. Where no op moves values between lanes, a kernel does a wide row tile by tile, so that
accumulators and operands stay in registers (:func:`feature_width`). Otherwise rows are resident: all lanes at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch

from sagann.kernels.edge.function import REDUCTIONS, EdgeFunction, Input, Op, Output
from sagann.kernels.edge.reductions import Reduction

T = TypeVar("T")
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


def once(find: Callable[[EdgeFunction], T]) -> Callable[[EdgeFunction], T]:
    """Decorate a function of edge functions: what it finds is kept as long as the edge function lives."""
    kept: WeakKeyDictionary[EdgeFunction, T] = WeakKeyDictionary()

    @wraps(find)
    def found(function: EdgeFunction) -> T:
        if function not in kept:
            kept[function] = find(function)
        return kept[function]

    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A tensor that a kernel writes."""

    rows: str
    'The tensor\'s rows: "row" for one per group, "edge" for one per edge, "item" for one per work item, then summed.'
    shape: tuple[int, ...]
    "Feature shape."
    dtype: torch.dtype | None
    "float32 or float64; None for ids of edges."
    neutral: float
    "Number in every entry before the first edge."

    def full_shape(self, num_rows: int) -> tuple[int, ...]:
        """Shape of a tensor that edges are reduced to, over so many groups."""
        return self.shape if self.rows == "item" else (num_rows, *self.shape)


def lanes(value: Input | Op) -> int:
    """Number of features of a row."""
    return math.prod(value.shape)


def kind_of(value: Input | Op) -> str:
    """Kind of a value's lanes in registers. Half precision is widened when a kernel loads the value."""
    kind = KINDS[value.dtype]
    return "f4" if kind in ("f2", "bf") else kind


@once
def is_empty(function: EdgeFunction) -> bool:
    """Whether a value has no features, so that there is nothing to compute."""
    return any(0 in value.shape for value in function.values)


@once
def results_of(function: EdgeFunction) -> list[Result]:
    """The tensors that a pass writes, in order; found once."""
    results: list[Result] = []
    for output in function.outputs:
        value = function.value(output.values[-1])
        reduction = output.reduction
        # A total has a term for every edge of the graph.
        is_wide = kind_of(value) == "f8" or reduction.rows == "item"
        dtype = torch.float64 if is_wide else torch.float32
        shapes = {"value": value.shape, "score": function.value(output.values[0]).shape, "row": ()}
        results += [
            Result(
                rows=reduction.rows,
                shape=shapes[part.of],
                dtype=None if part.is_edge else dtype,
                neutral=part.neutral,
            )
            for part in reduction.state
        ]
    return results


def reduced_results(function: EdgeFunction) -> list[Result]:
    """The tensors that edges are reduced to: the state of a gather."""
    return [result for result in results_of(function) if result.rows != "edge"]


def placed(outputs: Iterable[Output]) -> Iterator[tuple[Output, slice]]:
    """Each output, and the places of its tensors among the tensors of all these outputs."""
    first = 0
    for output in outputs:
        last = first + len(output.reduction.state)
        yield output, slice(first, last)
        first = last


def reduced_outputs(function: EdgeFunction) -> list[Output]:
    """The outputs to which edges are reduced."""
    return [output for output in function.outputs if output.reduction.rows != "edge"]


def merged_results(function: EdgeFunction) -> Iterator[tuple[Reduction, slice]]:
    """The reduction of each output with a row per group, and the places of its tensors among all results."""
    for output, here in placed(function.outputs):
        if output.reduction.rows == "row":
            yield output.reduction, here


def feature_width(function: EdgeFunction) -> int | None:
    """Number of lanes of every value with more than one lane, where lane i depends on lanes i alone; else None."""
    widths = {lanes(value) for value in function.values} - {1}
    if len(widths) != 1 or any(_moves_lanes(function, op) for op in function.ops):
        return None
    return widths.pop()


def _moves_lanes(function: EdgeFunction, op: Op) -> bool:
    if op.op in REDUCTIONS or op.op == "slice":
        return lanes(op) != lanes(function.value(str(op.args[0])))
    if op.op == "permute":
        shape = function.value(str(op.args[0])).shape
        # Lanes stay where only dimensions of size 1 change their place.
        order = [dim for dim in op.attrs["dims"] if shape[dim] != 1]
        return order != sorted(order)
    # With a single width, the other structural ops copy all lanes or spread one lane.
    return op.op == "cat" and len(op.args) > 1
