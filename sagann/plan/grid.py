"""ChunkGrid: the edges of a graph by source interval and destination interval.

Invariants: an edge lies in the chunk of its ends' intervals. The edges of a destination keep their order. The edges of all
chunks are numbered consecutively, by destination interval, then by source interval. A chunk is a topology whose ids count
from the start of their intervals.

References:
    Ma et al., NGra, 2018, Sec. 3.1; Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.1: 2D graph partitioning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.counting_sort import group_by_key
from sagann.graph.topology import Topology
from sagann.plan.hops import EdgesOfType, Hop, hop_size, topology_of
from sagann.plan.intervals import num_destinations, sizes
from sagann.plan.steps import ALL

CUT_BYTES = 50
"Bytes of temporary memory for an edge that is cut, about."
MOST_EDGES = 1 << 22
"Most edges that are cut together by default; more are not cut faster."
MOST_EDGES_BY_SOURCE = 1 << 26
"The same where destinations are not cut: all edges are read for each few chunks."
# Edges that are searched together for the edges of a few chunks.
_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeChunk:
    """The edges from one interval to another."""

    src: int
    "Number of the source interval."
    dst: int
    "Number of the destination interval."
    topology: Topology
    "The edges, with ids within the intervals."
    edge_ids: Tensor
    "Ids of the edges in the whole graph."
    first_edge: int
    "Number of the chunk's first edge among the edges of all chunks."


class ChunkGrid:
    """Cuts a topology by intervals of its sources. Chunks are made on demand and not kept.

    The destinations are all sources, or the first ones; an interval then has destinations, or other sources, not both.

    Args:
        hop: the whole graph's topology, or its edges of one type; arrays may be mapped from files.
        bounds: of the intervals, as :mod:`sagann.plan.intervals` gives them.
        most_edges: most edges that are cut together, unless one chunk has more; each needs :data:`CUT_BYTES`.
        data: names of the edge data that chunks get; all by default.
        uncut: whether the sources are not cut, and the destinations. The number of the one interval there is :data:`sagann.plan.steps.ALL`.

    Raises:
        InputError: the bounds do not cut all sources, or none of them lies between destinations and other sources.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 3, 2]), dst=torch.tensor([3, 0, 0]), num_src=4)
        >>> grid = ChunkGrid(topology, (0, 2, 4))
        >>> [(chunk.src, chunk.dst, chunk.topology.indices.tolist()) for chunk in grid.into(0)]
        [(1, 0, [0, 1])]
    """

    def __init__(
        self,
        hop: Hop,
        bounds: Sequence[int],
        *,
        most_edges: int = MOST_EDGES,
        data: Collection[str] | None = None,
        uncut: tuple[bool, bool] = (False, False),
    ) -> None:
        self.most_edges = most_edges
        self.hop = hop
        self.topology = topology_of(hop)
        known = self.topology.edge_data
        self._data = {name: known[name] for name in (known if data is None else data)}
        self._table: Tensor | None = None
        self._bounds, self._uncut = tuple(bounds), uncut
        _check(self.topology, self._bounds)
        self._sources = (0, self.topology.num_src) if uncut[0] else self._bounds
        self._destinations = (0, self.topology.num_dst) if uncut[1] else self._bounds

    @property
    def num_intervals(self) -> int:
        """Number of intervals of sources."""
        return len(self._sources) - 1

    @property
    def num_destinations(self) -> int:
        """Number of intervals of destinations, the first ones."""
        return num_destinations(self._destinations, self.topology.num_dst)

    def chunks(self) -> Iterator[EdgeChunk]:
        """All chunks with edges, in the order of their edges' numbers, one column after the other."""
        for dst in range(self.num_destinations):
            yield from self.into(dst)

    def into(self, dst: int) -> Iterator[EdgeChunk]:
        """The chunks with edges to a destination interval, by source: a column of the grid.

        A few chunks are made together, so that temporary memory depends on their edges, not on those of the column.
        """
        vertices = self._vertices(dst)
        edges = slice(int(self.topology.indptr[vertices.start]), int(self.topology.indptr[vertices.stop]))
        if edges.start == edges.stop:
            return
        if self._uncut[0] and isinstance(self.hop, Topology):
            yield self._column(dst, edges)
            return
        if edges.stop - edges.start <= self.most_edges:
            yield from self._cut(dst, range(self.num_intervals), edges, None)
            return
        counts = self._counts(dst) if not self._uncut[0] else [edges.stop - edges.start]
        first_edge, src = edges.start, 0
        while src < self.num_intervals:
            begin, taken = src, counts[src]
            src += 1
            while src < self.num_intervals and taken + counts[src] <= self.most_edges:
                taken += counts[src]
                src += 1
            if taken:
                yield from self._cut(dst, range(begin, src), edges, first_edge)
            first_edge += taken

    def _counts(self, dst: int) -> list[int]:
        """Edges into a destination interval, by source interval."""
        found = hop_size(self.hop, self._bounds).edges
        if not self._uncut[1]:
            return [found.get((src, dst), 0) for src in range(self.num_intervals)]
        counts = [0] * self.num_intervals
        for (src, _), count in found.items():
            counts[src] += count
        return counts

    def _vertices(self, dst: int) -> slice:
        return slice(self._destinations[dst], self._destinations[dst + 1])

    def _column(self, dst: int, edges: slice) -> EdgeChunk:
        """The edges into a destination interval from all sources, as they lie."""
        topology, vertices = self.topology, self._vertices(dst)
        return EdgeChunk(
            src=ALL,
            dst=dst,
            topology=Topology(
                indptr=topology.indptr[vertices.start : vertices.stop + 1] - edges.start,
                indices=topology.indices[edges],
                num_src=topology.num_src,
                edge_data={name: data[edges] for name, data in self._data.items()},
                validate=False,
            ),
            edge_ids=torch.arange(edges.start, edges.stop, device=topology.device),
            first_edge=edges.start,
        )

    def _found(self, edges: slice, srcs: range, first: int) -> tuple[Tensor, Tensor]:
        """Sources that lie in a range of intervals, among a range of edges, and their positions counted from edge ``first``."""
        sources = self.topology.indices[edges]
        wanted = (sources >= self._sources[srcs.start]) & (sources < self._sources[srcs.stop])
        if isinstance(self.hop, EdgesOfType):
            own = self.hop.within(edges)
            at = own[wanted[own]]
        else:
            at = wanted.nonzero().squeeze(1)
        return sources[at], at.add_(edges.start - first)

    def _intervals_of(self, sources: Tensor) -> Tensor:
        """The interval of each source, int32, from a table: this is faster than a search among the bounds."""
        if self._table is None:
            dtype = torch.uint8 if self.num_intervals <= 1 << 8 else torch.int32
            numbers = torch.arange(self.num_intervals, dtype=dtype, device="cpu")
            self._table = torch.repeat_interleave(numbers, torch.tensor(sizes(self._sources), device="cpu")).to(
                sources.device
            )
        return self._table.index_select(0, sources).int()

    def _cut(self, dst: int, srcs: range, edges: slice, first_edge: int | None) -> Iterator[EdgeChunk]:
        """The chunks from a range of source intervals, among the edges into the destination interval.

        ``first_edge`` is the number of the first edge from ``srcs``; None where ``srcs`` is all intervals.
        """
        topology = self.topology
        vertices = self._vertices(dst)
        offsets = topology.indptr[vertices.start : vertices.stop + 1] - edges.start
        if first_edge is None and isinstance(self.hop, Topology):
            sources, at = topology.indices[edges], None
        else:
            begins = range(edges.start, edges.stop, _AT_ONCE)
            parts = [slice(begin, min(begin + _AT_ONCE, edges.stop)) for begin in begins]
            found = [self._found(part, srcs, edges.start) for part in parts]
            sources, at = (torch.cat(each) for each in zip(*found, strict=True))
        if first_edge is None:
            first_edge = edges.start
        # The sort is stable: within a source interval, edges stay in the order of destinations.
        grouped = group_by_key(self._intervals_of(sources) - srcs.start, len(srcs), positions=True)
        for number, src in enumerate(srcs):
            first, last = grouped.indptr[number : number + 2].tolist()
            if first == last:
                continue
            taken = grouped.positions[first:last]
            place = taken if at is None else at[taken]
            ids = place.long() + edges.start
            size = self._sources[src + 1] - self._sources[src]
            yield EdgeChunk(
                src=ALL if self._uncut[0] else src,
                dst=ALL if self._uncut[1] else dst,
                topology=Topology(
                    indptr=torch.searchsorted(place, offsets.to(place.dtype)),
                    indices=(sources[taken] - self._sources[src]).to(topology.indices.dtype),
                    # A topology counts its destinations among its sources; sources beyond the interval have no edges.
                    num_src=max(size, vertices.stop - vertices.start),
                    edge_data={name: data.index_select(0, ids) for name, data in self._data.items()},
                    validate=False,
                ),
                edge_ids=ids,
                first_edge=first_edge + first,
            )


def _check(topology: Topology, bounds: tuple[int, ...]) -> None:
    ascending = all(first <= last for first, last in pairwise(bounds))
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != topology.num_src or not ascending:
        raise InputError(
            f"intervals do not cut the vertices: bounds {bounds[:4]}{'...' if len(bounds) > 4 else ''}, "
            f"{topology.num_src} vertices (in ChunkGrid)",
            hint="Pass ascending bounds from 0 to the number of vertices, as equal_vertices gives them.",
        )
    if topology.num_dst not in bounds:
        raise InputError(
            f"an interval has destinations and other sources: {topology.num_src} sources, {topology.num_dst} "
            "destinations, which is no bound (in ChunkGrid)",
            hint="Pass the topology of a whole graph, or bounds that separate the destinations from the other sources.",
        )
