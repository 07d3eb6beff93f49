"""ChunkGrid: the edges of a graph by source interval and destination interval.

Invariants: every edge lies in the chunk of its ends' intervals, and keeps among those of its destination the order that
it had. Chunks number their edges through: those of destination interval 0 first, within it by source interval. A chunk
is a topology whose ids count from the start of their intervals.

References:
    Ma et al., NGra, 2018, Sec. 3.1; Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.1: 2D graph partitioning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.counting_sort import group_by_key
from sagann.graph.topology import Topology
from sagann.plan.edges_of_type import Hop, topology_of
from sagann.plan.intervals import sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeChunk:
    """The edges from one interval to another."""

    src: int
    "Number of the source interval."
    dst: int
    "Number of the destination interval."
    topology: Topology
    "The edges, by ids within their intervals."
    edge_ids: Tensor
    "Their ids in the whole graph."
    first_edge: int
    "Number of the chunk's first edge among all chunks'."


class ChunkGrid:
    """How a topology whose sources and destinations are the same vertices is cut; makes the chunks, and keeps none.

    Args:
        hop: the whole graph's topology, or its edges of one type; arrays may be mapped from files.
        bounds: of the intervals, as :mod:`sagann.plan.intervals` gives them.

    Raises:
        InputError: the topology is bipartite, or the bounds do not cut all of its vertices.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 3, 2]), dst=torch.tensor([3, 0, 0]), num_src=4)
        >>> grid = ChunkGrid(topology, (0, 2, 4))
        >>> [(chunk.src, chunk.dst, chunk.topology.indices.tolist()) for chunk in grid.into(0)]
        [(1, 0, [1, 0])]
    """

    def __init__(self, hop: Hop, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self.hop = hop
        self.topology = topology_of(hop)
        _check(self.topology, self.bounds)

    @property
    def num_intervals(self) -> int:
        """Number of intervals on either side."""
        return len(self.bounds) - 1

    def chunks(self) -> Iterator[EdgeChunk]:
        """All chunks with edges, in the order of their edges' numbers; made one column after the other."""
        for dst in range(self.num_intervals):
            yield from self.into(dst)

    def into(self, dst: int) -> Iterator[EdgeChunk]:
        """The chunks with edges to a destination interval, by source: a column of the grid."""
        topology = self.topology
        vertices = slice(self.bounds[dst], self.bounds[dst + 1])
        offsets = topology.indptr[vertices.start : vertices.stop + 1]
        edges = slice(int(offsets[0]), int(offsets[-1]))
        sources = topology.indices[edges]
        own = None if isinstance(self.hop, Topology) else self.hop.within(edges)
        if own is not None:
            sources, offsets = sources[own], torch.searchsorted(own, offsets - edges.start) + edges.start
        bounds = torch.tensor(self.bounds, dtype=sources.dtype, device=topology.device)
        interval = torch.searchsorted(bounds, sources, right=True, out_int32=True).sub_(1)
        # Stable: within a source interval by destination, as before.
        grouped = group_by_key(interval, self.num_intervals, positions=True)
        assert grouped.positions is not None
        begins = (offsets - edges.start).to(grouped.positions.dtype)
        for src, size in enumerate(sizes(self.bounds)):
            first, last = grouped.indptr[src : src + 2].tolist()
            if first == last:
                continue
            taken = grouped.positions[first:last]
            ids = (taken.long() if own is None else own[taken]) + edges.start
            yield EdgeChunk(
                src=src,
                dst=dst,
                topology=Topology(
                    indptr=torch.searchsorted(taken, begins),
                    indices=(sources[taken] - self.bounds[src]).to(topology.indices.dtype),
                    # Destinations are said to be among the sources; those beyond the interval have no edges.
                    num_src=max(size, vertices.stop - vertices.start),
                    edge_data={name: _rows(data, ids) for name, data in topology.edge_data.items()},
                    validate=False,
                ),
                edge_ids=ids,
                first_edge=edges.start + first,
            )


def _rows(data: Tensor, ids: Tensor) -> Tensor:
    return data.index_select(0, ids)


def _check(topology: Topology, bounds: tuple[int, ...]) -> None:
    if topology.num_src != topology.num_dst:
        raise InputError(
            "a bipartite topology cannot be cut into a grid",
            value=f"{topology.num_src} sources, {topology.num_dst} destinations",
            where="ChunkGrid",
            fix="Pass the topology of a whole graph.",
        )
    ascending = all(first <= last for first, last in pairwise(bounds))
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != topology.num_dst or not ascending:
        raise InputError(
            "intervals do not cut the vertices",
            value=f"bounds {bounds[:4]}{'...' if len(bounds) > 4 else ''}, {topology.num_dst} vertices",
            where="ChunkGrid",
            fix="Pass ascending bounds from 0 to the number of vertices, as equal_vertices gives them.",
        )
