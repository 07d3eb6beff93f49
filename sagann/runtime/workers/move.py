"""Moving a part: between two epochs, rows and edges go from the workers that own them to those that own them from now on.

Every array of a part is in the order of the vertices, and so are the ranges of the workers. So what one worker gets from another is one
contiguous slice of an array, which is received in its place in the new array: nothing is sorted or copied twice. Values travel as they
are, so a moved part is bit for bit the part that a worker would have made of the whole graph.

While parts move, a worker holds its old part and its new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sagann.graph.rows import csr_tensor, is_sparse
from sagann.partition import Part, numbered_part
from sagann.runtime.workers.group import Workers

DOING = "moving vertices between workers"


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedRows:
    """Where the rows of an array go, and where the rows of the new array come from."""

    sent: Mapping[int, slice]
    "For each worker, this one included, the rows of the old array that it gets."
    received: Mapping[int, slice]
    "For each worker, this one included, the rows of the new array that it gives."
    num_rows: int

    @classmethod
    def of_vertices(cls, before: Sequence[int], after: Sequence[int], rank: int) -> MovedRows:
        """The rows of an array with a row for each own vertex, between two divisions of the vertices."""
        workers = range(len(before) - 1)
        return cls(
            sent={to: _overlap(before, rank, after, to, before[rank]) for to in workers},
            received={of: _overlap(before, of, after, rank, after[rank]) for of in workers},
            num_rows=after[rank + 1] - after[rank],
        )

    def of_entries(self, old: Tensor, new: Tensor) -> MovedRows:
        """The rows of an array with entries for each vertex, as edges, from the offsets of entries in the old and in the new part."""

        def entries(offsets: Tensor, rows: Mapping[int, slice]) -> dict[int, slice]:
            return {rank: slice(int(offsets[each.start]), int(offsets[each.stop])) for rank, each in rows.items()}

        return MovedRows(sent=entries(old, self.sent), received=entries(new, self.received), num_rows=int(new[-1]))

    def move(self, rows: Tensor, workers: Workers) -> Tensor:
        rows = rows.contiguous()
        moved = rows.new_empty(self.num_rows, *rows.shape[1:])
        moved[self.received[workers.rank]] = rows[self.sent[workers.rank]]
        workers.transfer(
            {rank: rows[self.sent[rank]] for rank in workers.others},
            {rank: moved[self.received[rank]] for rank in workers.others},
            DOING,
        )
        return moved

    def move_offsets(self, offsets: Tensor, workers: Workers) -> Tensor:
        """The new part's offsets of entries, from the old part's [num_own + 1]; both begin with 0."""
        counts = self.move(offsets.diff(), workers)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0, dtype=counts.dtype)])


def moved_edges(
    part: Part, edge_data: Mapping[str, Tensor], bounds: Sequence[int], workers: Workers
) -> tuple[Part, dict[str, Tensor]]:
    """The part with other bounds, and the edge data of its edges. All workers call this at the same time."""
    vertices = MovedRows.of_vertices(part.bounds, bounds, workers.rank)
    indptr = vertices.move_offsets(part.indptr, workers)
    edges = vertices.of_entries(part.indptr, indptr)
    sources = edges.move(part.sources(), workers)
    data = {name: edges.move(rows, workers) for name, rows in edge_data.items()}
    first_edge = entries_before(len(sources), workers)
    num_src = part.bounds[-1]
    return numbered_part(bounds, workers.rank, indptr, sources, first_edge=first_edge, num_src=num_src), data


def moved_features(features: Tensor, before: Sequence[int], after: Sequence[int], workers: Workers) -> Tensor:
    """The features of the own vertices after a move, dense or ``torch.sparse_csr``. All workers call this at the same time."""
    vertices = MovedRows.of_vertices(before, after, workers.rank)
    if not is_sparse(features):
        return vertices.move(features, workers)
    offsets = vertices.move_offsets(features.crow_indices(), workers)
    values = vertices.of_entries(features.crow_indices(), offsets)
    columns = values.move(features.col_indices(), workers)
    return csr_tensor(offsets, columns, values.move(features.values(), workers), num_columns=features.shape[1])


def entries_before(count: int, workers: Workers) -> int:
    """The sum of one count of each worker before this one."""
    counts = workers.exchange(dict.fromkeys(workers.others, torch.tensor([count])), DOING)
    return sum(int(counts[rank]) for rank in workers.others if rank < workers.rank)


def _overlap(before: Sequence[int], of: int, after: Sequence[int], to: int, origin: int) -> slice:
    """The vertices of worker ``of`` that go to worker ``to``, numbered from ``origin``. Empty at a place within the array, if none do."""
    start, stop = max(before[of], after[to]), min(before[of + 1], after[to + 1])
    return slice(start - origin, stop - origin) if start < stop else slice(0, 0)
