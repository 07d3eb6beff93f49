"""Maps picked by edge type, computed once per pair of a vertex and a type (:mod:`sagann.compiler.typed`).

Rows of vertices become rows of pairs, each type's run of pairs is one matrix product, and rows of pairs are summed at their
vertices. To read a vertex's row for its pairs and to sum its pairs' rows are each other's gradient. The sum is an ordinary
pass over the pairs: no atomics, always the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import LayerProgram
from sagann.graph.topology import Topology
from sagann.kernels.dialects import Dialect
from sagann.kernels.edge.function import EdgeFunction, Input, Output
from sagann.kernels.first_order import Saved, first_order_only
from sagann.runtime.gather import counts_of
from sagann.runtime.in_memory.pairs import Pairs, check_types, count_pairs, pairs_of

_Rows = Callable[[Tensor], Tensor]


def moved_bytes(program: LayerProgram, topology: Topology, types: Tensor, *, kept: bool = False) -> int:
    """Bytes that the forward moves over edges and pairs; the backward moves about the same once or twice more.

    ``num_edges * bytes_per_edge + num_pairs * bytes_per_pair``, with the pairs of the end that is mapped. If what is gathered is
    kept from epoch to epoch, no edge is read again.
    """
    typed = program.typed
    assert typed is not None
    num_pairs = count_pairs(topology, types, typed.num_types)[typed.end]
    return (0 if kept else topology.num_edges * program.bytes_per_edge) + num_pairs * typed.bytes_per_pair


def gathered_bytes(program: LayerProgram, topology: Topology, types: Tensor) -> int:
    """Size of what is gathered where the maps go last: a row for every pair of destination and type."""
    typed = program.typed
    assert typed is not None
    return count_pairs(topology, types, typed.num_types)["dst"] * typed.row_bytes


def edges_of_pairs(
    program: LayerProgram, topology: Topology, values: dict[str, Tensor], dialect: Dialect
) -> tuple[Topology, dict[str, Tensor]]:
    """The edges that the program gathers over and the arrays that they read, with pairs at one end.

    ``values`` are by name, with rows of vertices and in the order of the edges.
    """
    typed = program.typed
    if typed is None:
        return topology, values
    types = values[typed.types]
    if typed.order == "none":
        check_types(topology, types, typed.num_types)
        return topology, values
    pairs = pairs_of(topology, types, typed.num_types, typed.end)
    given = dict(values)
    for name, side in zip(program.edges.stage.inputs, program.edges.sides, strict=True):
        if side == typed.end and name != typed.name:
            given[name] = _of_pairs(values[name], pairs, dialect)
        if side == "edge":
            given[name] = pairs.types if name == typed.types else pairs.in_order(values[name])
    if typed.order == "first":
        rows = _of_pairs(values[typed.x], pairs, dialect)
        given[typed.name] = _mapped(rows, values[typed.weight], pairs)
    return pairs.topology, given


def rows_of_vertices(
    program: LayerProgram, topology: Topology, values: dict[str, Tensor], dialect: Dialect
) -> dict[str, Tensor]:
    """What the vertices read of what was gathered: pairs of destination and type mapped, and summed or averaged.

    [num_dst, ...] by name; nothing where the gather was one over destinations.
    """
    typed = program.typed
    if typed is None or typed.order == "none" or typed.end == "src":
        return {}
    pairs = pairs_of(topology, values[typed.types], typed.num_types, "dst")
    rows = values[program.accum]
    if typed.order == "last":
        rows = _mapped(rows, values[typed.weight], pairs)
    total: Tensor = _Linear.apply(rows, partial(_sum, pairs, dialect), partial(_read, pairs))  # type: ignore[no-untyped-call]
    if typed.mean:
        total = total / counts_of(topology)(total)
    return {typed.name if typed.order == "last" else program.accum: total}


def _of_pairs(rows: Tensor, pairs: Pairs, dialect: Dialect) -> Tensor:
    """Each pair's row of its vertex."""
    read: Tensor = _Linear.apply(rows, partial(_read, pairs), partial(_sum, pairs, dialect))  # type: ignore[no-untyped-call]
    return read


def _mapped(rows: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
    """Each pair's row through the map of its type: [num_pairs, F']."""
    mapped: Tensor = _MappedRuns.apply(rows, weight, pairs.counts)  # type: ignore[no-untyped-call]
    return mapped


class _Linear(torch.autograd.Function):
    """A linear function of rows, whose gradient is another one."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, function: _Rows, gradient: _Rows) -> Tensor:
        ctx.gradient = gradient
        return function(rows)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.gradient(grad), None, None


class _MappedRuns(torch.autograd.Function):
    """One matrix product per type, each written to its place."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, counts: tuple[int, ...]) -> Tensor:
        ctx.counts = counts
        ctx.save_for_backward(rows, weight)
        return _products(rows, weight, counts)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = saved
        to_rows = _products(grad, weight.mT, ctx.counts) if ctx.needs_input_grad[0] else None
        to_weight = None
        if ctx.needs_input_grad[1]:
            runs = zip(rows.split(ctx.counts), grad.split(ctx.counts), strict=True)
            # A type without pairs has a product of no rows, which is zero.
            to_weight = torch.stack([run.mT @ upstream for run, upstream in runs])
        return to_rows, to_weight, None


def _products(rows: Tensor, weight: Tensor, counts: tuple[int, ...]) -> Tensor:
    out = rows.new_empty(len(rows), weight.shape[2])
    for run, target, matrix in zip(rows.split(counts), out.split(counts), weight, strict=True):
        torch.mm(run, matrix, out=target)
    return out


def _read(pairs: Pairs, rows: Tensor) -> Tensor:
    return rows.index_select(0, pairs.vertex)


def _sum(pairs: Pairs, dialect: Dialect, rows: Tensor) -> Tensor:
    """The pairs' rows summed at their vertices: [num_vertices, ...]."""
    function = _summing(tuple(rows.shape[1:]), rows.dtype)
    (total,) = dialect.run(function, pairs.members, {"rows": rows})
    return total.to(rows.dtype)


@cache
def _summing(shape: tuple[int, ...], dtype: torch.dtype) -> EdgeFunction:
    rows = Input(name="rows", side="src", shape=shape, dtype=dtype)
    return EdgeFunction(inputs=(rows,), ops=(), outputs=(Output(reduce="sum", values=("rows",)),), at="dst")
