"""Graphs of the shapes of ROC's Table 4, generated at a scale, and what a cut of them for workers counts.

A plan depends on counts alone: vertices and edges of each interval, and rows that other workers need. They are counted in a generated graph
with a part of the shape's vertices and edges, and multiplied. So a plan has the bytes of the whole shape. The share of the vertices that a
worker needs of another one depends on the scale a little, through the degrees of the largest vertices; the mean degree is the shape's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from bench.epochs.graphs import Shape
from sagann.graph import Topology, rmat_edges
from sagann.graph.chunk_counts import chunk_counts
from sagann.graph.rmat import Quadrants
from sagann.partition import part_of, vertex_ranges
from sagann.plan.intervals import PartIntervals, equal_vertices

QUADRANTS = Quadrants(a=0.38, b=0.24, c=0.24, d=0.14)
"""Degree law. With Graph500's quadrants a vertex of Reddit's shape would have more neighbours than there are vertices; with these, a tenth
of them."""
MOST_EDGES = 8_000_000
SEED = 0


class Generated(NamedTuple):
    """A generated graph, and how many times larger the shape is that it stands for."""

    topology: Topology
    scale: int
    "Vertices, edges and rows of the shape for each one of the graph."

    @classmethod
    def of(cls, shape: Shape, *, hubs_first: bool = False, seed: int = SEED) -> Generated:
        """An R-MAT graph, by default with ids that say nothing about degrees."""
        scale = -(-shape.edges // MOST_EDGES)
        vertices, edges = shape.vertices // scale, shape.edges // scale
        src, dst = rmat_edges(vertices, edges, seed=seed, quadrants=QUADRANTS, scramble=not hubs_first)
        return cls(topology=Topology.from_coo(src=src, dst=dst, num_src=vertices), scale=scale)

    @classmethod
    def side_by_side(cls, graphs: Sequence[Generated]) -> Generated:
        """One graph of several, all of one scale, without edges between them; their vertices follow one another."""
        first = list(accumulate((each.topology.num_dst for each in graphs), initial=0))
        indptr = [graphs[0].topology.indptr[:1]]
        for each in graphs:
            indptr.append(each.topology.indptr[1:] + indptr[-1][-1])
        indices = [each.topology.indices + start for each, start in zip(graphs, first[:-1], strict=True)]
        topology = Topology(indptr=torch.cat(indptr), indices=torch.cat(indices), num_src=first[-1])
        return cls(topology=topology, scale=graphs[0].scale)

    def ranges(self, count: int, by: str = "edges") -> tuple[int, ...]:
        """Ranges of equal edges or vertices."""
        return vertex_ranges(self.topology.indptr, count, by=by)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """Counts of a graph whose vertices are cut into one range for each worker, and each range into intervals."""

    bounds: tuple[int, ...]
    num_intervals: int
    edges: Tensor
    "Number of edges from each source interval to each destination interval, int64 [intervals, intervals]."
    needed: Tensor
    "Number of rows of each interval that each worker needs and does not own, int64 [intervals, workers]."

    @classmethod
    def of(cls, graph: Generated, ranges: Sequence[int], num_intervals: int) -> Cut:
        """Count a cut."""
        bounds = [0]
        for first, last in pairwise(ranges):
            bounds += [first + each for each in equal_vertices(last - first, num_intervals)[1:]]
        halos = [part_of(graph.topology, ranges, rank).halo for rank in range(len(ranges) - 1)]
        limits = torch.tensor(bounds)
        needed = torch.stack([torch.searchsorted(halo, limits).diff() for halo in halos], dim=1)
        return cls(
            bounds=tuple(graph.scale * each for each in bounds),
            num_intervals=num_intervals,
            edges=graph.scale * chunk_counts(graph.topology, bounds),
            needed=graph.scale * needed,
        )

    @cached_property
    def parts(self) -> tuple[Share, ...]:
        return tuple(self.part(rank) for rank in range(self.needed.shape[1]))

    def part(self, rank: int) -> Share:
        own = range(rank * self.num_intervals, (rank + 1) * self.num_intervals)
        halo = self.needed[:, rank].nonzero().flatten().tolist()
        rows = [self.bounds[each + 1] - self.bounds[each] for each in own]
        rows += self.needed[halo, rank].tolist()
        numbers = (*own, *halo)
        asked = self.needed[own.start : own.stop]
        sent = {(place, peer): int(asked[place, peer]) for place, peer in asked.nonzero().tolist()}
        intervals = PartIntervals(
            bounds=(0, *accumulate(rows)),
            num_own=self.num_intervals,
            owners=tuple(each // self.num_intervals for each in halo),
            rank=rank,
            sent=sent,
            num_workers=self.needed.shape[1],
        )
        chunks = self.edges[list(numbers)][:, own.start : own.stop]
        edges = {(src, dst): int(chunks[src, dst]) for src, dst in chunks.nonzero().tolist()}
        return Share(intervals=intervals, numbers=numbers, edges=edges)


class Share(NamedTuple):
    """A worker's part, as far as a plan depends on it."""

    intervals: PartIntervals
    "Intervals of own vertices and of the halo. An interval of the halo has the rows that are needed of one interval of its owner."
    numbers: tuple[int, ...]
    "For each interval, the number of the interval of the graph that its rows lie in."
    edges: Mapping[tuple[int, int], int]
    "Number of edges by source and destination interval of the part."
