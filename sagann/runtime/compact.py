"""Compact: a chunk's edges, counting the other end's rows among those that the chunk needs; and the way back."""

from __future__ import annotations

import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.plan.sizes import PICKED_CSC

# Ids that are turned back at a time: no second array of all of them is made.
_AT_ONCE = 1 << 16


def needed_ids(topology: Topology, form: str) -> Tensor:
    """The sources or destinations that have edges, ascending: [n], of the topology's id type.

    Args:
        topology: of a chunk.
        form: of picked sources, or of picked destinations.
    """
    if form == PICKED_CSC:
        has_edges = torch.zeros(topology.num_src, dtype=torch.bool)
        has_edges[topology.indices.long()] = True
    else:
        has_edges = topology.indptr.diff() > 0
    return has_edges.nonzero().squeeze(1).to(topology.indices.dtype)


def compact(topology: Topology, form: str, needed: Tensor) -> Topology:
    """The edges with picked ends numbered among those that are needed.

    Args:
        topology: of a chunk.
        form: of picked sources, or of picked destinations.
        needed: as :func:`needed_ids` gives them.
    """
    indptr, indices, num_src = topology.indptr, topology.indices, topology.num_src
    if form == PICKED_CSC:
        numbers = torch.empty(num_src, dtype=indices.dtype)
        numbers[needed.long()] = torch.arange(len(needed), dtype=indices.dtype)
        indices = numbers[indices.long()]
    else:
        # Those between two of them have no edges.
        indptr = torch.cat([indptr[needed.long()], indptr[-1:]])
    return Topology(indptr=indptr, indices=indices, num_src=num_src, edge_data=topology.edge_data, validate=False)


def expand_ids(numbers: Tensor, needed: Tensor) -> None:
    """Put ids within the interval in the place of numbers among those that are needed."""
    for begin in range(0, len(numbers), _AT_ONCE):
        part = numbers[begin : begin + _AT_ONCE]
        part.copy_(needed[part.long()])


def expand_offsets(indptr: Tensor, needed: Tensor, num_rows: int) -> Tensor:
    """Offsets of all rows, from those of the needed ones.

    Args:
        indptr: int64 [n + 1].
        needed: [n].
        num_rows: how many there are.
    """
    degrees = torch.zeros(num_rows + 1, dtype=indptr.dtype)
    degrees[needed.long() + 1] = indptr.diff()
    return degrees.cumsum_(0)
