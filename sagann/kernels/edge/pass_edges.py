"""PassEdges: edges grouped by one end, for passes that reduce to that end; and the arrays that a pass reads and writes.

A topology serves passes to either end. A chunk of a grid is copied for one pass at a time, so it has only the arrays of that
pass: offsets, the other ends, edge data in the order of the pass, and the edges' ids where the pass asks for ids. Ids and
offsets are as narrow as the chunk allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sagann.graph.rows import id_dtype
from sagann.graph.topology import Csr, Topology
from sagann.kernels.edge.function import EdgeFunction, End, Input, Result
from sagann.kernels.memory import empty


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PassEdges:
    """The edges of a chunk, for passes at one end.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([1, 0]), dst=torch.tensor([0, 1]), num_src=2)
        >>> edges = PassEdges.of(topology, "src")
        >>> edges.indptr.tolist(), edges.indices.tolist(), edges.edge_ids.tolist()
        ([0, 1, 2], [1, 0], [1, 0])
    """

    at: End
    "The end by which the edges are grouped."
    indptr: Tensor
    "int32 or int64 [num_rows + 1]: offsets of the rows at that end."
    indices: Tensor
    "int16, int32 or int64 [num_edges]: vertex at the other end of every edge."
    num_others: int
    edge_ids: Tensor | None = None
    "Position of every edge in CSC order [num_edges]; None in CSC order, and where no pass asks for ids."
    edge_data: Mapping[str, Tensor] = field(default_factory=dict)
    "Edge data by name, a row for every edge, in the order of ``indices``."
    _derived: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, topology: Topology, at: End) -> PassEdges:
        """A topology's edges with their data, for passes at one end."""
        edges, data = grouped(topology, at), topology.edge_data
        if edges.edge_ids is not None:
            data = {name: rows.index_select(0, edges.edge_ids) for name, rows in data.items()}
        return replace(edges, edge_data=data)

    @property
    def num_rows(self) -> int:
        """Number of vertices at the end by which the edges are grouped."""
        # Every pass reads this number, and len() of a tensor takes much longer.
        return self.indptr.size(0) - 1

    @property
    def num_src(self) -> int:
        """Number of sources."""
        return self.num_rows if self.at == "src" else self.num_others

    @property
    def num_dst(self) -> int:
        """Number of destinations."""
        return self.num_rows if self.at == "dst" else self.num_others

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.indices.size(0)

    @property
    def id_dtype(self) -> torch.dtype:
        """Type of the edges' ids."""
        return id_dtype(self.num_edges)

    @property
    def device(self) -> torch.device:
        """Device of the arrays."""
        return self.indices.device

    def holds(self, array: Tensor) -> bool:
        """Whether an array is data of these edges, in their order."""
        return any(array is rows for rows in self.edge_data.values())

    def derived(self, key: object, build: Callable[[], Any]) -> Any:
        """The result of ``build``, which runs at the first call; kept with these edges."""
        if key not in self._derived:
            self._derived[key] = build()
        return self._derived[key]

    def mapped(self, move: Callable[[Tensor], Tensor]) -> PassEdges:
        """The same edges with every array replaced by ``move(array)``: a copy on a device, say. Derived results are left out."""
        return PassEdges(
            at=self.at,
            indptr=move(self.indptr),
            indices=move(self.indices),
            num_others=self.num_others,
            edge_ids=None if self.edge_ids is None else move(self.edge_ids),
            edge_data={name: move(rows) for name, rows in self.edge_data.items()},
        )

    def topology(self) -> Topology:
        """The same edges as a topology whose destinations are the rows, without edge data."""
        return Topology(
            indptr=self.indptr.long(),
            indices=self.indices if self.indices.dtype == torch.int64 else self.indices.int(),
            num_src=max(self.num_rows, self.num_others),
            validate=False,
        )


Edges = Topology | PassEdges
"The edges of a pass."


def grouped(edges: Edges, at: End) -> PassEdges:
    """The edges grouped by an end; those of a topology without their data, found once."""
    if isinstance(edges, PassEdges):
        return edges
    found: PassEdges = edges.derived(("pass", at), lambda: _grouped(edges, at))
    return found


def _grouped(topology: Topology, at: End) -> PassEdges:
    given: Topology | Csr = topology
    edge_ids, num_others = None, topology.num_src
    if at == "src":
        given = topology.csr()
        edge_ids, num_others = given.edge_ids, topology.num_dst
    # Kernels read rows by address.
    indptr, indices = given.indptr.contiguous(), given.indices.contiguous()
    return PassEdges(at=at, indptr=indptr, indices=indices, num_others=num_others, edge_ids=edge_ids)


def num_groups(edges: Edges, at: End) -> int:
    """Number of rows at "dst" or "src"."""
    return edges.num_dst if at == "dst" else edges.num_src


def used_rows(edges: PassEdges) -> int:
    """One more than the last row that has an edge; looked up once."""
    rows: int = edges.derived("used rows", lambda: int(torch.searchsorted(edges.indptr, edges.num_edges)))
    return rows


def prepared(
    function: EdgeFunction, arrays: Mapping[str, Tensor], edges: Edges
) -> tuple[list[Tensor], frozenset[str]]:
    """The inputs with each row's features side by side, and the names of those that lie in the order of the pass."""
    inputs, in_order = [], []
    pass_edges = grouped(edges, function.at)
    for given in function.inputs:
        array, is_in_order = _prepared(given, arrays[given.name], edges, pass_edges)
        inputs.append(array)
        if is_in_order:
            in_order.append(given.name)
    return inputs, frozenset(in_order)


def _prepared(given: Input, array: Tensor, edges: Edges, pass_edges: PassEdges) -> tuple[Tensor, bool]:
    is_in_order = pass_edges.edge_ids is None or pass_edges.holds(array)
    # A kernel reads the memory alone, which does not contain PyTorch's negation bit.
    if array.requires_grad or array.is_neg():
        array = array.detach().resolve_neg()
    if given.dtype == torch.bool:
        array = array.int()
    if array.dtype not in (torch.int32, torch.int64) or given.dtype.is_floating_point:
        array = array.to(given.dtype)
    if not array.is_contiguous() and (given.side == "param" or array.ndim < 2 or not array[:1].is_contiguous()):
        array = array.contiguous()
    if given.side != "edge" or is_in_order:
        return array, True
    return (array, False) if isinstance(edges, PassEdges) else _in_pass_order(array, edges, pass_edges)


def _in_pass_order(array: Tensor, topology: Topology, pass_edges: PassEdges) -> tuple[Tensor, bool]:
    """The topology's own edge data in the order of the pass, kept until it changes; any other array as it lies."""
    address = array.data_ptr()
    if array.is_inference() or all(address != data.data_ptr() for data in topology.edge_data.values()):
        return array, False
    ordered: dict[object, tuple[Tensor, int, Tensor]] = pass_edges.derived("ordered", dict)
    key = (address, array.dtype, array.shape, array.stride())
    known = ordered.get(key)
    if known is None or known[1] != array._version:
        assert pass_edges.edge_ids is not None
        known = ordered[key] = (array, array._version, array.index_select(0, pass_edges.edge_ids))
    return known[2], True


def _earlier(results: Sequence[Result], into: Sequence[Tensor] | None) -> list[Tensor | None]:
    """For each result of a pass, the earlier result that the pass continues from, if any."""
    if into is None:
        return [None] * len(results)
    known = iter(into)
    return [next(known) if result.rows != "edge" else None for result in results]


def targets(
    results: Sequence[Result], edges: PassEdges, into: Sequence[Tensor] | None, *, num_totals: int
) -> list[Tensor]:
    """The tensors that a kernel writes: earlier results with a row per group, and new ones. Totals get ``num_totals`` rows."""
    rows = {"row": edges.num_rows, "edge": edges.num_edges, "item": num_totals}
    return [
        earlier
        if earlier is not None and result.rows == "row"
        else empty((rows[result.rows], *result.shape), result.dtype or edges.id_dtype, edges.device)
        for result, earlier in zip(results, _earlier(results, into), strict=True)
    ]


def fill_neutral(results: Sequence[Result], slots: Sequence[Tensor]) -> None:
    """Fill the slots of partial results, one tensor for each result of the pass, with neutral numbers."""
    for result, slot in zip(results, slots, strict=True):
        if result.rows != "edge":
            slot.fill_(result.neutral)


def finished(
    results: Sequence[Result], outs: Sequence[Tensor], edges: PassEdges, into: Sequence[Tensor] | None
) -> tuple[Tensor, ...]:
    """The results of a pass, from the tensors that a kernel wrote, with totals summed.

    A kernel that continues starts totals anew, so they are added to the earlier totals. A kernel that starts anew over CSR
    writes positions of extrema in CSR order, which become ids of edges.
    """
    found = []
    for result, out, earlier in zip(results, outs, _earlier(results, into), strict=True):
        if into is None and result.dtype is None and edges.edge_ids is not None:
            ids = edges.edge_ids[out.clamp(min=0)]
            found.append(torch.where(out < 0, out, ids.to(out.dtype)))
        else:
            found.append(earlier.add_(out) if earlier is not None and result.rows == "item" else out)
    return tuple(found)
