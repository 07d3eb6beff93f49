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
    types, wanted = (None, 0) if of_type is None else (topology.edge_data[of_type[0]].cpu().numpy(), of_type[1])
    found = np.empty((count, count), dtype=np.int64)
    with pytorch_threads():
        _count(topology.indices.cpu().numpy(), interval_of, columns, types, wanted, found)
    return torch.from_numpy(found.T.copy())


@compiled(parallel=True)
def _count(indices: Any, interval_of: Any, columns: Any, types: Any, wanted: int, found: Any) -> None:
    """Fill ``found``: the counts by destination interval and source interval."""
    for dst in prange(len(columns) - 1):
        # A row of its own: threads that write into one cache line slow each other down.
        counts = np.zeros(found.shape[1], dtype=np.int64)
        for edge in range(columns[dst], columns[dst + 1]):
            if types is None or types[edge] == wanted:
                counts[interval_of[indices[edge]]] += 1
        found[dst] = counts
