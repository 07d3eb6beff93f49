"""Maps picked by edge type, computed once per pair of a vertex and a type (:mod:`sagann.compiler.typed`).

Rows of vertices become rows of pairs, each type's run of pairs is one matrix product, and rows of pairs are summed at their
vertices. To read a vertex's row for its pairs and to sum its pairs' rows are each other's gradient. The sum is an ordinary
pass over the pairs: no atomics, always the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import LayerProgram
from sagann.graph.counting_sort import group_by_key
from sagann.graph.rows import id_dtype
from sagann.graph.topology import Topology, for_training_as_well
from sagann.kernels import dense
from sagann.kernels.edge import Dialect
from sagann.kernels.edge.function import EdgeFunction, End, Input, Output
from sagann.kernels.first_order import Saved, first_order_only
from sagann.runtime.gather import counts_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """The distinct pairs of type and vertex that the edges of a topology have at one end."""

    topology: Topology
    """The edges, with pairs at that end. A topology has at least as many sources as destinations, so there may be more sources
    than rows of an array of sources. No edge has one of those."""
    types: Tensor
    "Types of the edges in that topology's order [num_edges]."
    vertex: Tensor
    "Vertex of each pair, int64 [num_pairs]; ascending within a type."
    counts: tuple[int, ...]
    members: Topology
    "Topology from pairs to their vertices, which sums the pairs of a vertex."
    order: Tensor | None
    "For each edge of that topology, its id in the graph; None where the edges are in the same order."

    def in_order(self, rows: Tensor) -> Tensor:
        """Rows of the graph's edges in the order of these edges."""
        return rows if self.order is None else rows.index_select(0, self.order)


def check_types(topology: Topology, types: Tensor, num_types: int) -> None:
    """Refuse types that are negative or not below ``num_types``; checked once per topology."""
    _kept(topology, "checked types", types, num_types, lambda: dense.check_types(types, num_types))


def _kept(topology: Topology, what: str, types: Tensor, num_types: int, build: Callable[[], Any]) -> Any:
    """A result of ``build`` from the types, kept with the topology until the types change."""
    if types.is_inference():
        return build()
    kept: dict[object, tuple[int, Any]] = topology.derived(what, dict)
    key = (types.data_ptr(), types.dtype, types.stride(), num_types)
    if key not in kept or kept[key][0] != types._version:
        with for_training_as_well():
            kept[key] = (types._version, build())
    return kept[key][1]


def count_pairs(topology: Topology, types: Tensor, num_types: int) -> dict[End, int]:
    """Number of pairs at either end; counted once."""
    check_types(topology, types, num_types)

    def count() -> dict[End, int]:
        return {end: len(torch.unique(_keys(topology, types, end))) for end in ("src", "dst")}

    counts: dict[End, int] = _kept(topology, "numbers of typed pairs", types, num_types, count)
    return counts


def pairs_of(topology: Topology, types: Tensor, num_types: int, end: End) -> Pairs:
    """The pairs of a topology at the end of the edges that pairs replace; found once."""
    check_types(topology, types, num_types)
    pairs: Pairs = _kept(
        topology, f"typed pairs, {end}", types, num_types, lambda: _found(topology, types, num_types, end)
    )
    return pairs


def _keys(topology: Topology, types: Tensor, end: End) -> Tensor:
    """A number for every edge's pair. The numbers order pairs by type, then by vertex."""
    if end == "src":
        return types.long() * topology.num_src + topology.indices
    return types.long() * topology.num_dst + topology.edge_dst()


def _found(topology: Topology, types: Tensor, num_types: int, end: End) -> Pairs:
    distinct, index = torch.unique(_keys(topology, types, end), return_inverse=True)
    order = None
    if end == "src":
        num_vertices, num_src = topology.num_src, max(len(distinct), topology.num_dst)
        indptr, indices = topology.indptr, index.to(id_dtype(num_src))
    else:
        num_vertices, num_src = topology.num_dst, max(topology.num_src, len(distinct))
        grouped = group_by_key(index, len(distinct), values=topology.indices, positions=True)
        indptr, indices, order = grouped.indptr, grouped.values, grouped.positions
        types = types.index_select(0, order)
    # Without vertices there are no pairs either.
    per_type = max(num_vertices, 1)
    vertex = distinct % per_type
    grouped = group_by_key(vertex, num_vertices, positions=True)
    num_rows = max(len(distinct), num_vertices)
    members = Topology(
        indptr=grouped.indptr, indices=grouped.positions.to(id_dtype(num_rows)), num_src=num_rows, validate=False
    )
    counts = torch.bincount(distinct // per_type, minlength=num_types)
    return Pairs(
        topology=Topology(indptr=indptr, indices=indices, num_src=num_src, validate=False),
        types=types,
        vertex=vertex,
        counts=tuple(counts.tolist()),
        members=members,
        order=order,
    )


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
    read: Tensor = _Linear.apply(rows, partial(_read, pairs), partial(_sum, pairs, dialect))  # type: ignore[no-untyped-call]
    return read


def _mapped(rows: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
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
