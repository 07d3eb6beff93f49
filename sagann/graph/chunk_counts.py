"""Chunk counts: the number of edges from each source interval to each destination interval, in one pass over the edges.

Each edge costs one read of a table that maps vertices to intervals. The table is small, so much of it stays in the
cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.jit import compiled, pytorch_threads

# Smallest number of edges for each thread: to start a thread takes longer than to count fewer edges.
_EDGES_PER_THREAD = 1 << 15


def chunk_counts(topology: Topology, bounds: Sequence[int], of_type: tuple[str, int] | None = None) -> Tensor:
    """Count the edges from each source interval to each destination interval, int64 [P, P].

    The bounds of the intervals ascend from 0 to the number of sources. If there are fewer destinations, their number is a bound, and
    the intervals after it have no in-edges. ``of_type`` is the name of the edge data that holds
    types, and the type of the edges to count; None counts all edges.
    """
    count = len(bounds) - 1
    limits = np.asarray(bounds, dtype=np.int64)
    dtype = np.uint8 if count <= 1 << 8 else np.uint32
    interval_of = np.repeat(np.arange(count, dtype=dtype), np.diff(limits))
    columns = topology.indptr.cpu()[torch.from_numpy(limits).clamp(max=topology.num_dst)].numpy()
    with pytorch_threads() as threads:
        slices = max(1, min(threads, topology.num_edges // _EDGES_PER_THREAD))
        found = np.zeros((slices, count, count), dtype=np.int64)
        types, wanted = (None, 0) if of_type is None else (topology.edge_data[of_type[0]].cpu().numpy(), of_type[1])
        _count(topology.indices.cpu().numpy(), interval_of, columns, types, wanted, found)
    return torch.from_numpy(found.sum(axis=0).T.copy())


@compiled(parallel=True)
def _count(indices: Any, interval_of: Any, columns: Any, types: Any, wanted: int, found: Any) -> None:
    """Fill ``found``: for every slice of the edges, the counts by destination interval and source interval."""
    slices, num_edges = len(found), len(indices)
    for part in prange(slices):
        begin, end = num_edges * part // slices, num_edges * (part + 1) // slices
        for dst in range(len(columns) - 1):
            for edge in range(max(begin, columns[dst]), min(end, columns[dst + 1])):
                if types is None or types[edge] == wanted:
                    found[part, dst, interval_of[indices[edge]]] += 1
