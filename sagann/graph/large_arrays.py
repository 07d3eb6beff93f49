"""Allocation of the large arrays of a prepared graph: edge data and changed features.

The arrays are in memory by default. A caller can place them elsewhere with :func:`made_by`, for example in files for a
graph larger than memory. Arrays are written slab by slab, so only one slab must be in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Allocate = Callable[[Sequence[int], torch.dtype], Tensor]
"Makes an uninitialised tensor on the CPU from a shape and a dtype."

SLAB_EDGES = 1 << 21
"Number of edges in a slab: a slab takes tens of megabytes and runs at memory speed."

_ALLOCATE: ContextVar[Allocate | None] = ContextVar("sagann_large_arrays", default=None)


def empty_array(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make an uninitialised tensor. On the CPU, the function that was given to :func:`made_by` makes it."""
    allocate = _ALLOCATE.get()
    if allocate is None or device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return allocate(shape, dtype)


@contextmanager
def made_by(allocate: Allocate) -> Iterator[None]:
    """Inside the ``with`` block, ``allocate`` makes large arrays."""
    token = _ALLOCATE.set(allocate)
    try:
        yield
    finally:
        _ALLOCATE.reset(token)


def slabs(indptr: Tensor, most_edges: int = SLAB_EDGES) -> Iterator[tuple[slice, slice]]:
    """Cut destinations into ranges with few in-edges; yield the vertices and the edges of each range.

    A destination with more than ``most_edges`` edges is a range by itself.
    """
    begin, num_dst = 0, len(indptr) - 1
    while begin < num_dst:
        first = int(indptr[begin])
        limit = torch.tensor([first + most_edges], dtype=indptr.dtype, device=indptr.device)
        # A range has at most most_edges vertices, because a vertex without edges takes memory too.
        window = indptr[begin + 1 : begin + 1 + most_edges]
        fitting = int(torch.searchsorted(window, limit, right=True))
        end = begin + max(1, fitting)
        yield slice(begin, end), slice(first, int(indptr[end]))
        begin = end
