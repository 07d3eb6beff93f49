"""Walk: the edges grouped as a pass goes over them, cut into work items; and the arrays that a pass reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sagann.graph.rows import id_dtype
from sagann.graph.topology import Topology
from sagann.kernels.edge.function import EdgeFunction, Input
from sagann.kernels.edge.kinds import Result
from sagann.kernels.edge.pass_edges import Edges, PassEdges
from sagann.kernels.edge.work import Work
from sagann.kernels.memory import empty


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """The edges grouped as a pass walks them."""

    indptr: Tensor
    indices: Tensor
    "The other endpoint of every edge [num_edges]."
    edge_ids: Tensor | None
    "Position of every edge in CSC order [num_edges]; None where the pass goes in CSC order, or asks for no ids."
    work: Work
    ordered: dict[object, tuple[Tensor, int, Tensor]] = field(default_factory=dict)
    "Edge data kept in the order of the pass, by address and form: the data, its version when copied, the copy."

    @property
    def num_rows(self) -> int:
        """Number of groups."""
        return self.indptr.size(0) - 1

    @property
    def id_dtype(self) -> torch.dtype:
        """Type of edge ids."""
        return id_dtype(self.indices.size(0))


def walk_over(edges: Edges, at: str, work: Work) -> Walk:
    """The walk over edges grouped at "dst" or "src", whose rows were cut into the items of ``work``."""
    if isinstance(edges, PassEdges):
        indices, edge_ids = edges.indices, edges.edge_ids
    elif at == "dst":
        indices, edge_ids = edges.indices, None
    else:
        csr = edges.csr()
        indices, edge_ids = csr.indices, csr.edge_ids
    indptr = offsets_of(edges, at).contiguous()
    return Walk(indptr=indptr, indices=indices.contiguous(), edge_ids=edge_ids, work=work)


def offsets_of(edges: Edges, at: str) -> Tensor:
    """The offsets of the rows at "dst" or "src"."""
    return edges.indptr if isinstance(edges, PassEdges) or at == "dst" else edges.csr().indptr


def num_groups(edges: Edges, at: str) -> int:
    """Number of rows at "dst" or "src"."""
    return edges.num_dst if at == "dst" else edges.num_src


def used_rows(edges: Edges, at: str) -> int:
    """One more than the last row that has an edge; looked up once."""
    rows: int = edges.derived(
        ("used rows", at), lambda: int(torch.searchsorted(offsets_of(edges, at), edges.num_edges))
    )
    return rows


def prepared(
    function: EdgeFunction, arrays: Mapping[str, Tensor], walk: Walk, edges: Edges
) -> tuple[list[Tensor], frozenset[str]]:
    """The inputs with each row's features side by side, and the names of those that lie in the order of the pass."""
    inputs, in_order = [], []
    for given in function.inputs:
        array, is_in_order = _prepared(given, arrays[given.name], walk, edges)
        inputs.append(array)
        if is_in_order:
            in_order.append(given.name)
    return inputs, frozenset(in_order)


def _prepared(given: Input, array: Tensor, walk: Walk, edges: Edges) -> tuple[Tensor, bool]:
    is_in_order = walk.edge_ids is None or (isinstance(edges, PassEdges) and edges.holds(array))
    # A kernel reads the memory alone, which does not contain PyTorch's negation bit.
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
    """The topology's own edge data in the order of the pass, kept until it changes; any other array as it lies."""
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


def _earlier(results: Sequence[Result], into: Sequence[Tensor] | None) -> list[Tensor | None]:
    """For each result of a pass, the earlier result that the pass continues from, if any."""
    if into is None:
        return [None] * len(results)
    known = iter(into)
    return [next(known) if result.rows != "edge" else None for result in results]


def targets(
    results: Sequence[Result], walk: Walk, into: Sequence[Tensor] | None, *, num_totals: int
) -> list[Tensor]:
    """The tensors that a kernel writes: earlier results with a row per group, and new ones. Totals get ``num_totals`` rows."""
    rows = {"row": walk.num_rows, "edge": len(walk.indices), "item": num_totals}
    return [
        earlier
        if earlier is not None and result.rows == "row"
        else empty((rows[result.rows], *result.shape), result.dtype or walk.id_dtype, walk.indices.device)
        for result, earlier in zip(results, _earlier(results, into), strict=True)
    ]


def fill_neutral(results: Sequence[Result], slots: Sequence[Tensor]) -> None:
    """Fill the slots of partial results, one tensor for each result of the pass, with neutral numbers."""
    for result, slot in zip(results, slots, strict=True):
        if result.rows != "edge":
            slot.fill_(result.neutral)


def finished(
    results: Sequence[Result], outs: Sequence[Tensor], walk: Walk, into: Sequence[Tensor] | None
) -> tuple[Tensor, ...]:
    """The results of a pass, from the tensors that a kernel wrote, with totals summed.

    A kernel that continues starts totals anew, so they are added to the earlier totals. A kernel that starts anew over CSR
    writes positions of extrema in CSR order, which become ids of edges.
    """
    found = []
    for result, out, earlier in zip(results, outs, _earlier(results, into), strict=True):
        if into is None and result.dtype is None and walk.edge_ids is not None:
            ids = walk.edge_ids[out.clamp(min=0)]
            found.append(torch.where(out < 0, out, ids.to(out.dtype)))
        else:
            found.append(earlier.add_(out) if earlier is not None and result.rows == "item" else out)
    return tuple(found)
