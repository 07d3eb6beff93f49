"""Walk: the edges grouped as a pass goes over them, cut into work items; and a pass's arrays made ready for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.graph.widths import id_dtype
from sagann.kernels.edge.function import EdgeFunction, Input
from sagann.kernels.edge.kinds import Result, reduced_results
from sagann.kernels.edge.pass_edges import Edges, PassEdges
from sagann.kernels.edge.work import Work
from sagann.kernels.memory import empty


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """The edges grouped as a pass walks them."""

    indptr: Tensor
    "int32 or int64 [num_rows + 1]."
    indices: Tensor
    "The other endpoint of every edge [num_edges]."
    edge_ids: Tensor | None
    "Position of every edge in CSC order [num_edges]; None where the pass goes in that order, or asks for no ids."
    work: Work
    "The items."
    ordered: dict[object, tuple[Tensor, int, Tensor]] = field(default_factory=dict)
    "By address and form, edge data that is kept in the order of the pass: the data, its version then, its rows."

    @property
    def num_rows(self) -> int:
        """Number of groups."""
        return self.indptr.size(0) - 1

    @property
    def id_dtype(self) -> torch.dtype:
        """Type of edge ids."""
        return id_dtype(self.indices.size(0))


def walk_over(edges: Edges, at: str, divide: Callable[[NDArray[np.integer]], Work]) -> Walk:
    """The walk over edges grouped at "dst" or "src"; ``divide`` cuts the rows of its offsets."""
    return walk_by(edges, at, divide(offsets_of(edges, at).cpu().numpy()))


def walk_by(edges: Edges, at: str, work: Work) -> Walk:
    """The walk over edges grouped at "dst" or "src", whose rows were cut before."""
    if isinstance(edges, PassEdges):
        indices, edge_ids = edges.indices, edges.edge_ids
    elif at == "dst":
        indices, edge_ids = edges.indices, None
    else:
        csr = edges.csr()
        indices, edge_ids = csr.indices, csr.edge_ids
    return Walk(
        indptr=offsets_of(edges, at).contiguous(),
        indices=indices.contiguous(),
        edge_ids=edge_ids,
        work=work,
    )


def offsets_of(edges: Edges, at: str) -> Tensor:
    """The offsets of the rows at "dst" or "src"."""
    return edges.indptr if isinstance(edges, PassEdges) or at == "dst" else edges.csr().indptr


def used_rows(edges: Edges, at: str) -> int:
    """One more than the last row that has an edge; looked up once."""

    def found() -> int:
        return int(torch.searchsorted(offsets_of(edges, at), edges.num_edges))

    rows: int = edges.derived(("used rows", at), found)
    return rows


def prepare(given: Input, array: Tensor, walk: Walk, edges: Edges) -> tuple[Tensor, bool]:
    """The array with each row's features side by side, and whether edge rows lie in the order of the pass."""
    is_in_order = walk.edge_ids is None or (isinstance(edges, PassEdges) and edges.holds(array))
    # A kernel reads the memory alone, in which PyTorch's negation bit does not stand.
    array = array.detach().resolve_neg()
    if given.dtype == torch.bool:
        array = array.int()
    if array.dtype not in (torch.int32, torch.int64) or given.dtype.is_floating_point:
        array = array.to(given.dtype)
    if given.side == "param" or array.ndim < 2 or not array[:1].is_contiguous():
        array = array.contiguous()
    if given.side != "edge" or is_in_order:
        return array, True
    return (array, False) if isinstance(edges, PassEdges) else _in_pass_order(array, walk, edges)


def _in_pass_order(array: Tensor, walk: Walk, topology: Topology) -> tuple[Tensor, bool]:
    """The topology's own edge data is put in the order of a pass once; what changes is read where it lies."""
    address = array.data_ptr()
    if array.is_inference() or all(address != data.data_ptr() for data in topology.edge_data.values()):
        return array, False
    key = (address, array.dtype, array.shape, array.stride())
    known = walk.ordered.get(key)
    if known is None or known[1] != array._version:
        assert walk.edge_ids is not None
        known = (array, array._version, array.index_select(0, walk.edge_ids))
        walk.ordered[key] = known
    return known[2], True


def _allocate(result: Result, walk: Walk, num_totals: int) -> Tensor:
    """An uninitialised tensor for a result."""
    rows = {"row": walk.num_rows, "edge": len(walk.indices), "item": num_totals}[result.rows]
    return empty((rows, *result.shape), result.dtype or walk.id_dtype, walk.indices.device)


def targets(
    results: Sequence[Result], walk: Walk, into: Sequence[Tensor] | None, *, num_totals: int
) -> list[Tensor]:
    """What a kernel writes its results to: rows to earlier results where there are any, else to new tensors.

    Args:
        results: of the pass.
        walk: the edges.
        into: earlier results, where the pass continues.
        num_totals: rows of a total: one of each item, say, that are still to be summed.
    """
    if into is None:
        return [_allocate(result, walk, num_totals) for result in results]
    known = iter(into)
    given = [next(known) if result.rows != "edge" else None for result in results]
    return [
        earlier if earlier is not None and result.rows == "row" else _allocate(result, walk, num_totals)
        for result, earlier in zip(results, given, strict=True)
    ]


def fill_neutral(function: EdgeFunction, slots: Sequence[Tensor]) -> None:
    """Begin partial results, one tensor for each result of the pass."""
    position = 0
    for output in function.outputs:
        for part in output.reduction.state:
            if output.reduction.rows != "edge":
                slots[position].fill_(part.neutral)
            position += 1


def add_totals(results: Sequence[Result], outs: Sequence[Tensor], into: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of a pass that has continued: totals, which kernels begin anew, are added to earlier ones."""
    known = iter(into)
    continued = []
    for result, out in zip(results, outs, strict=True):
        earlier = next(known) if result.rows != "edge" else out
        continued.append(earlier.add_(out) if result.rows == "item" else out)
    return tuple(continued)


def name_edges(function: EdgeFunction, results: list[Tensor], walk: Walk) -> None:
    """Turn the positions that a pass over CSR has found extrema at into ids of edges, in place."""
    if walk.edge_ids is None:
        return
    parts = [part for output in function.outputs for part in output.reduction.state]
    for number, part in enumerate(parts):
        if part.is_edge:
            where = results[number]
            ids = walk.edge_ids[where.clamp(min=0)]
            results[number] = torch.where(where < 0, where, ids.to(where.dtype))


def check_into(function: EdgeFunction, edges: Edges, into: Sequence[Tensor] | None, edge_offset: int) -> None:
    """Check that a pass can go over the edges, and continue from ``into``.

    Raises:
        ValueError: it cannot; the message names the tensor.
    """
    if isinstance(edges, PassEdges):
        _check_order(function, edges)
    if into is None:
        if edge_offset:
            raise ValueError(
                f"A pass that starts anew numbers its edges from 0, not from {edge_offset}; pass `into`."
            )
        return
    expected = reduced_results(function)
    if len(into) != len(expected):
        raise ValueError(
            f"The function has {len(expected)} results to continue from (got {len(into)}); pass all that the pass so far "
            f"returned, but for outputs on edges."
        )
    num_rows = next((len(rows) for rows, result in zip(into, expected, strict=True) if result.rows == "row"), None)
    if num_rows is not None:
        _check_rows(function, edges, num_rows)
    for number, (given, result) in enumerate(zip(into, expected, strict=True)):
        shape = result.shape if result.rows == "item" else (num_rows, *result.shape)
        if given.shape != shape or not given.is_contiguous() or given.device != edges.device:
            form = "contiguous" if given.is_contiguous() else "strided"
            raise ValueError(
                f"Result {number} of the pass so far has shape {list(given.shape)} ({form}, on {given.device}), "
                f"expected {list(shape)}, contiguous, on {edges.device}; pass it as a pass over edges of these rows "
                f"returned it."
            )
        last = edge_offset + edges.num_edges - 1
        if given.dtype not in (torch.int32, torch.int64) if result.dtype is None else given.dtype != result.dtype:
            wanted = result.dtype or "int32 or int64"
            raise ValueError(
                f"Result {number} of the pass so far has type {given.dtype}, expected {wanted}; pass it as the pass "
                f"returned it."
            )
        if result.dtype is None and torch.iinfo(given.dtype).max < last:
            raise ValueError(f"Result {number} has type {given.dtype}, too narrow for edge {last}; pass int64.")
    widths = {given.dtype for given, result in zip(into, expected, strict=True) if result.dtype is None}
    if len(widths) > 1:
        found = " and ".join(sorted(map(str, widths)))
        raise ValueError(f"The ids of edges in the pass so far have the types {found}; pass all of them in one.")


def _check_order(function: EdgeFunction, edges: PassEdges) -> None:
    if edges.at != function.at:
        raise ValueError(
            f"The edges are grouped by {edges.at}, but the pass goes by {function.at}; pass "
            f"PassEdges.of(topology, '{function.at}')."
        )
    if function.at == "src" and edges.edge_ids is None and function.asks_for_ids:
        raise ValueError("The pass asks for the edges' ids, but they come without; load them too.")


def _check_rows(function: EdgeFunction, edges: Edges, num_rows: int) -> None:
    num_groups = edges.num_dst if function.at == "dst" else edges.num_src
    if num_groups == num_rows:
        return
    if num_groups < num_rows or used_rows(edges, function.at) > num_rows:
        raise ValueError(
            f"The pass so far has {num_rows} rows, but these edges are of {num_groups}; rows beyond must have no edges."
        )
