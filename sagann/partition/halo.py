"""A worker's part of a graph: its own vertices with all their in-edges, and the halo.

The halo are the sources that the worker's edges read and other workers own. In the part's numbering the own vertices come
first, in order; the halo follows, by ascending id. So the part is a bipartite topology whose destinations are the first
sources, as a block of a mini-batch is, and the rows that one worker sends lie side by side.

References:
    Jia et al., ROC, MLSys 2020, Sec. 3 and 4.2: a partition holds its vertices and the in-neighbours that other partitions own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sagann.graph.large_arrays import SLAB_EDGES, empty_array
from sagann.graph.rows import Arrays, id_dtype
from sagann.graph.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part(Arrays):
    """The vertices and edges of one worker. Its arrays are on one device."""

    bounds: tuple[int, ...]
    "Bounds of the ranges of all workers (:func:`sagann.partition.vertex_ranges`)."
    rank: int
    edges: slice
    "Ids in the graph of the in-edges of the worker's vertices."
    indptr: Tensor
    "CSC offsets, int64 [num_own + 1], from 0."
    indices: Tensor
    "Source of each edge in the part's numbering, int32 or int64 [num_edges], in the order of the graph."
    halo: Tensor
    "Ids in the graph of the halo, int64 [num_halo], ascending."

    @property
    def vertices(self) -> slice:
        """Ids in the graph of the worker's own vertices."""
        return slice(self.bounds[self.rank], self.bounds[self.rank + 1])

    @property
    def num_own(self) -> int:
        """Number of the worker's own vertices."""
        return self.vertices.stop - self.vertices.start

    @property
    def num_src(self) -> int:
        """Number of sources: own vertices and halo."""
        return self.num_own + len(self.halo)

    def to(self, device: torch.device) -> Part:
        """The same part with its arrays on ``device``."""
        return self.mapped(lambda array: array.to(device))

    def sources(self) -> Tensor:
        """Source of each edge in the graph, in the order of the graph, of the type that the graph's ids have."""
        own = torch.arange(self.vertices.start, self.vertices.stop, device=self.halo.device)
        ids = torch.cat([own, self.halo]).to(id_dtype(self.bounds[-1]))
        return ids[self.indices]

    def halo_by_owner(self) -> tuple[slice, ...]:
        """For each worker, the range of the halo that it owns; empty for this worker itself."""
        places = torch.searchsorted(self.halo, self.halo.new_tensor(self.bounds)).tolist()
        return tuple(slice(first, last) for first, last in pairwise(places))


def part_of(topology: Topology, bounds: Sequence[int], rank: int) -> Part:
    """The part of one worker, in O(num_vertices + edges of the part). Other workers' edges are not read.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([3, 0, 2]), dst=torch.tensor([0, 1, 1]), num_src=4)
        >>> part = part_of(topology, (0, 2, 4), 0)
        >>> part.halo.tolist(), part.indices.tolist()
        ([2, 3], [3, 0, 2])
    """
    offsets = topology.indptr[bounds[rank] : bounds[rank + 1] + 1]
    first, stop = int(offsets[0]), int(offsets[-1])
    sources = topology.indices[first:stop]
    return numbered_part(bounds, rank, offsets - first, sources, first_edge=first, num_src=topology.num_src)


def numbered_part(
    bounds: Sequence[int], rank: int, indptr: Tensor, sources: Tensor, *, first_edge: int, num_src: int
) -> Part:
    """The part of one worker from its in-edges, in O(vertices of the graph + edges of the part)."""
    start, stop = bounds[rank], bounds[rank + 1]
    pieces = [slice(first, first + SLAB_EDGES) for first in range(0, len(sources), SLAB_EDGES)]
    is_read = torch.zeros(num_src, dtype=torch.bool, device=sources.device)
    for piece in pieces:
        is_read[sources[piece]] = True
    is_read[start:stop] = False
    halo = is_read.nonzero().flatten()
    # The number in the part of every vertex that the part reads; of other vertices no number is read.
    count = stop - start + len(halo)
    own = torch.arange(count, dtype=id_dtype(count), device=sources.device)
    numbers = own.new_empty(num_src)
    numbers[start:stop], numbers[halo] = own[: stop - start], own[stop - start :]
    indices = empty_array(sources.shape, numbers.dtype, sources.device)
    for piece in pieces:
        indices[piece] = numbers[sources[piece]]
    edges = slice(first_edge, first_edge + len(sources))
    return Part(bounds=tuple(bounds), rank=rank, edges=edges, indptr=indptr, indices=indices, halo=halo)
