"""Cost features: what the run time of an operation on a part of the graph depends on, as prefix sums over the destinations.

An operation reads, for every destination, the ids of its sources and then the rows of these sources. Sources with consecutive ids are a
run: their rows are contiguous in memory, so one access loads several. The features of a destination are 1 (vertices), the numbers of its
in-edges and of their runs (edges, runs), and the accesses that load ids and rows: sums over the runs of ceil(bytes / bytes of an access).

The features of a part are sums over its destinations. With prefix sums they cost one subtraction, whatever the size of the part.

References:
    Jia et al., ROC, MLSys 2020, Sec. 4.1, Table 2. We differ in three points. An access has a number of bytes instead of a
    number of values, so a cache line of a processor and a warp of a GPU have one formula. Copies of an edge count as edges and
    as ids, but their source is one row. Row accesses are counted for several widths of rows, because layers differ in width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from sagann.graph.topology import Topology
from sagann.jit import Array, compiled

FEATURES = ("vertices", "edges", "runs", "id accesses", "row accesses")
"Names of the features of a part, in the order of :meth:`CostFeatures.of_part`."
ACCESS_BYTES: Mapping[str, int] = MappingProxyType({"cpu": 64, "cuda": 128})
"""Bytes that one memory access loads, by type of device: a cache line of a processor; 4 bytes for each of the 32 threads of a
warp. Powers of 2."""
# Columns of the prefix sums before those of the row accesses: edges, runs and id accesses.
_NUM_COMMON = 3
# Row accesses are counted for this width where no operation reads rows.
_SOME_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class CostFeatures:
    """Prefix sums of the cost features over the destinations of a topology. Made by :func:`count_cost_features`."""

    sums: Array
    """int64 [num_dst + 1, 3 + number of widths]: row v has the sums over the destinations before v of edges, runs, id accesses,
    and row accesses for each of ``row_bytes``. Vertices need no column, because v is their sum. Callers must not modify it."""
    row_bytes: tuple[int, ...]
    "Bytes of a source's row, for each column of row accesses; ascending, without repetition."

    @property
    def num_vertices(self) -> int:
        """Number of destinations."""
        return len(self.sums) - 1

    def column(self, row_bytes: int) -> int:
        """The column of ``sums`` with the row accesses for rows of ``row_bytes``, one of those that were counted."""
        return _NUM_COMMON + self.row_bytes.index(row_bytes)

    def of_part(self, first: int, stop: int, row_bytes: int) -> Array:
        """The features of the destinations ``first`` to ``stop - 1``, float64 [5], in the order of :data:`FEATURES`."""
        if not row_bytes:
            return np.array([stop - first, 0, 0, 0, 0], dtype=np.float64)
        columns = [*range(_NUM_COMMON), self.column(row_bytes)]
        found = self.sums[stop, columns] - self.sums[first, columns]
        return np.array([stop - first, *found], dtype=np.float64)


def widths_to_count(operations: Mapping[str, int]) -> set[int]:
    """The widths for which :func:`count_cost_features` counts row accesses, at least one, so that the times of operations can be predicted.

    Example:
        >>> widths_to_count({"linear": 0, "sum": 256}), widths_to_count({"linear": 0})
        ({256}, {64})
    """
    return set(operations.values()) - {0} or {_SOME_BYTES}


def count_cost_features(topology: Topology, row_bytes: Iterable[int], *, device: str = "cpu") -> CostFeatures:
    """Count the cost features of every destination, in one pass over the edges.

    The topology has global ids: a part has the same features on every worker. The result takes 8 bytes for each vertex and
    column.

    Example:
        >>> import torch
        >>> topology = Topology.from_coo(src=torch.tensor([3, 4, 6, 8]), dst=torch.zeros(4, dtype=torch.int64), num_src=9)
        >>> dict(zip(FEATURES, count_cost_features(topology, [128]).of_part(0, 9, 128).tolist()))
        {'vertices': 9.0, 'edges': 4.0, 'runs': 3.0, 'id accesses': 3.0, 'row accesses': 8.0}
    """
    widths = tuple(sorted(set(row_bytes)))
    indptr, indices = topology.indptr.contiguous().numpy(), topology.indices.contiguous().numpy()
    sums = np.zeros((topology.num_dst + 1, _NUM_COMMON + len(widths)), dtype=np.int64)
    shift = ACCESS_BYTES[device].bit_length() - 1
    _sum_features(indptr, indices, np.array(widths, dtype=np.int64), shift, sums)
    return CostFeatures(sums=sums, row_bytes=widths)


@compiled()
def _sum_features(indptr: Array, indices: Array, row_bytes: Array, shift: int, sums: Array) -> None:
    """Fill ``sums``, whose first row is 0."""
    id_bytes, round_up = indices.itemsize, (1 << shift) - 1
    total = np.zeros(sums.shape[1], dtype=np.int64)
    for v in range(len(indptr) - 1):
        e, end = indptr[v], indptr[v + 1]
        total[0] += end - e
        while e < end:
            begin = e
            lowest = source = np.int64(indices[e])
            e += 1
            # A copy of an edge has the source before it again.
            while e < end and source <= indices[e] <= source + 1:
                source = np.int64(indices[e])
                e += 1
            total[1] += 1
            total[2] += ((e - begin) * id_bytes + round_up) >> shift
            num_rows = source - lowest + 1
            for k in range(len(row_bytes)):
                total[3 + k] += (num_rows * row_bytes[k] + round_up) >> shift
        sums[v + 1] = total
