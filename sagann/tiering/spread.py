"""Spread: values of destinations are added up at the sources of their edges, in parallel over CSC.

CSC groups edges by destination, so threads that walk it would add to the same source at once. Instead, edges are taken in pieces of
bounded size. The edges of a piece are distributed over about a thousand buckets of neighbouring sources; then each bucket is added up
by one thread, whose sums fit the cache. Every thread distributes a slice of the piece behind the slices before it, so a bucket has its
edges in their order. A source therefore adds up its values in the order of the edges: there are no atomic additions, and the result has
the same bits for any number of threads and as one plain loop over the edges.

Destinations of value 0 give nothing, and their edges are not read: where few vertices have a value, as in the first hop of a sampler, most
of the edges stay on the disk.

Memory beside the result: 12 bytes for each edge of a piece (16 above 2^31 vertices), whatever the number of edges of the graph. The
arrays of the topology are read twice in ascending order, so they may be mapped from files.

References:
    Beamer, Asanović and Patterson, Reducing PageRank Communication via Propagation Blocking, IPDPS 2017, Sec. IV. We differ in that
    edges are blocked piece by piece, so that memory does not grow with them.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from sagann.graph.counting_sort import BUCKET_BITS, ITEMS_PER_THREAD, Array, count_buckets, offsets_of_slices
from sagann.graph.topology import Topology
from sagann.jit import compiled, pytorch_threads

PIECE_EDGES = 1 << 22
"Number of edges in a piece."
# Ranges of buckets for each thread: some take longer than others.
_TASKS_PER_THREAD = 4


def spread(topology: Topology, values: Tensor) -> Tensor:
    """Add up, for every source, the values of the destinations of its out-edges.

    Args:
        topology: on the processor; its arrays may be mapped from files.
        values: float64 [num_dst].
    Returns:
        float64 [num_src]; 0 without out-edges. A multi-edge adds its value once for each of its edges.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 0, 1]), dst=torch.tensor([1, 2, 2]), num_src=3)
        >>> spread(topology, torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)).tolist()
        [3.0, 1.0, 0.0]
    """
    result = np.zeros(topology.num_src)
    indptr, indices, given = (array.contiguous().numpy() for array in (topology.indptr, topology.indices, values))
    piece = min(PIECE_EDGES, topology.num_edges)
    sources, parts = np.empty(piece, dtype=indices.dtype), np.empty(piece)
    shift = max(0, (topology.num_src - 1).bit_length() - BUCKET_BITS)
    with pytorch_threads() as threads:
        num_slices = max(1, min(threads, piece // ITEMS_PER_THREAD))
        for first in range(0, topology.num_edges, PIECE_EDGES):
            stop = min(first + PIECE_EDGES, topology.num_edges)
            _spread_piece(indptr, indices, given, first, stop, shift, num_slices, sources, parts, result)
    return torch.from_numpy(result)


@compiled(parallel=True)
def _spread_piece(
    indptr: Array,
    indices: Array,
    values: Array,
    first: int,
    stop: int,
    shift: int,
    num_slices: int,
    sources: Array,
    parts: Array,
    result: Array,
) -> None:
    num_edges = stop - first
    num_buckets = ((len(result) - 1) >> shift) + 1
    bounds = np.empty(num_slices + 1, dtype=np.int64)
    for s in range(num_slices + 1):
        bounds[s] = first + num_edges * s // num_slices

    # heads[s, b] is where slice s writes its next edge of bucket b.
    heads = np.zeros((num_slices, num_buckets), dtype=np.int64)
    for s in prange(num_slices):
        _count(indptr, indices, values, bounds[s], bounds[s + 1], shift, heads[s])
    ends = offsets_of_slices(heads)
    for s in prange(num_slices):
        _distribute(indptr, indices, values, bounds[s], bounds[s + 1], shift, heads[s], sources, parts)

    # Tasks are ranges of buckets that end nearest to equal shares of the edges. Their sources are apart.
    num_edges = ends[num_buckets - 1]
    num_tasks = min(num_buckets, _TASKS_PER_THREAD * num_slices)
    edge_bounds = np.zeros(num_tasks + 1, dtype=np.int64)
    for t in range(1, num_tasks):
        bucket = np.searchsorted(ends, num_edges * t // num_tasks, side="right")
        edge_bounds[t] = ends[bucket - 1] if bucket else 0
    edge_bounds[num_tasks] = num_edges
    for t in prange(num_tasks):
        for e in range(edge_bounds[t], edge_bounds[t + 1]):
            result[np.uint64(sources[e])] += parts[e]


@compiled()
def _count(indptr: Array, indices: Array, values: Array, begin: int, end: int, shift: int, counts: Array) -> None:
    """Add to ``counts`` how many edges of a slice each bucket gets: those of destinations with a value."""
    dst = np.searchsorted(indptr, begin, side="right") - 1
    while begin < end:
        row_end = min(end, indptr[dst + 1])
        if values[dst] != 0:
            count_buckets(indices, begin, row_end, shift, counts)
        begin = row_end
        dst += 1


@compiled()
def _distribute(
    indptr: Array,
    indices: Array,
    values: Array,
    begin: int,
    end: int,
    shift: int,
    heads: Array,
    sources: Array,
    parts: Array,
) -> None:
    """Copy the sources and values of a slice of edges to their buckets, but for edges of value 0."""
    dst = np.searchsorted(indptr, begin, side="right") - 1
    while begin < end:
        value = values[dst]
        row_end = min(end, indptr[dst + 1])
        if value != 0:
            for e in range(begin, row_end):
                source = indices[e]
                bucket = np.uint64(source) >> np.uint64(shift)
                at = np.uint64(heads[bucket])
                heads[bucket] = at + np.uint64(1)
                sources[at] = source
                parts[at] = value
        begin = row_end
        dst += 1
