"""Walk: the edges grouped as a pass goes over them, cut into work items; and a pass's arrays made ready for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.graph.widths import id_dtype
from sagann.kernels.edge.function import EdgeFunction, Input
from sagann.kernels.edge.kinds import Result
from sagann.kernels.edge.work import Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """The edges grouped as a pass walks them."""

    indptr: Tensor
    "int64 [num_rows + 1]."
    indices: Tensor
    "The other endpoint of every edge [num_edges]."
    edge_ids: Tensor | None
    "Position of every edge in CSC order [num_edges]; None where the pass goes in that order."
    work: Work
    "The items."
    ordered: dict[object, tuple[Tensor, int, Tensor]] = field(default_factory=dict)
    "By address and form, edge data that is kept in the order of the pass: the data, its version then, its rows."

    @property
    def num_rows(self) -> int:
        """Number of groups."""
        return len(self.indptr) - 1

    @property
    def id_dtype(self) -> torch.dtype:
        """Type of edge ids."""
        return id_dtype(len(self.indices))


def walk_over(topology: Topology, at: str, divide: Callable[[NDArray[np.int64]], Work]) -> Walk:
    """The walk over a topology's edges grouped at "dst" or "src"; ``divide`` cuts the rows of its offsets."""
    if at == "dst":
        indptr, indices, edge_ids = topology.indptr, topology.indices, None
    else:
        csr = topology.csr()
        indptr, indices, edge_ids = csr.indptr, csr.indices, csr.edge_ids
    return Walk(
        indptr=indptr.contiguous(),
        indices=indices.contiguous(),
        edge_ids=edge_ids,
        work=divide(indptr.cpu().numpy()),
    )


def prepare(given: Input, array: Tensor, walk: Walk, topology: Topology) -> tuple[Tensor, bool]:
    """The array with each row's features side by side, and whether edge rows lie in the order of the pass."""
    array = array.detach()
    if given.dtype == torch.bool:
        array = array.int()
    if array.dtype not in (torch.int32, torch.int64) or given.dtype.is_floating_point:
        array = array.to(given.dtype)
    if given.side == "param" or array.ndim < 2 or not array[:1].is_contiguous():
        array = array.contiguous()
    if given.side != "edge" or walk.edge_ids is None:
        return array, True
    return _in_pass_order(array, walk, topology)


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


def allocate(result: Result, walk: Walk) -> Tensor:
    """An uninitialised tensor for a result."""
    rows = {"row": walk.num_rows, "edge": len(walk.indices), "item": len(walk.work.items)}[result.rows]
    return torch.empty(rows, *result.shape, dtype=result.dtype or walk.id_dtype, device=walk.indices.device)


def name_edges(function: EdgeFunction, results: list[Tensor], walk: Walk) -> None:
    """Turn the positions that a pass over CSR has found extrema at into ids of edges, in place."""
    if walk.edge_ids is None:
        return
    position = 0
    for output in function.outputs:
        if output.reduce in ("max", "min"):
            where = results[position + 1]
            ids = walk.edge_ids[where.clamp(min=0)]
            results[position + 1] = torch.where(where < 0, where, ids.to(where.dtype))
        position += 2 if output.reduce in ("max", "min", "softmax") else 1
