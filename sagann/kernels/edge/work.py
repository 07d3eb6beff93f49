"""Work items: a pass over the edges cut into pieces of about equal cost.

An item is a range of rows. A row with very many edges is cut into several items, its pieces, whose partial results go to slots
and are merged in order. Pieces are short because a sum of very many terms in float32 drifts: the rounding of one addition is
relative to all terms before it. Merged neighbours first, the pieces of any row add little to the error of one. The cut, and so every rounding, depends on the offsets alone: results are bitwise the same for any number of
threads or processors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FIELDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Grain:
    """How finely a dialect's work is cut. A row costs as much as an edge."""

    num_items: int
    "Number of items of a large pass: enough to keep all threads busy to the end."
    smallest: int
    "Least cost of an item, in edges, so that starting an item costs less than its work."
    largest: int | None = None
    "Most cost of an item, in edges, so that no other program waits for it long; None for no limit."


PIECE_EDGES = 512
"Most edges of a piece of a cut row. A row of twice as many edges is not cut."
HOST_GRAIN = Grain(num_items=128, smallest=2048)
"Grain of CPUs."
DEVICE_GRAIN = Grain(num_items=1 << 14, smallest=64, largest=512)
"Grain of CUDA devices: several waves of programs on the largest device, and short items."


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The items of one pass."""

    items: NDArray[np.int64]
    "[num_items, 5]: first row, last row (exclusive), first edge, last edge (exclusive), slot or -1."
    split_rows: NDArray[np.int64]
    "Rows cut into several items."
    split_indptr: NDArray[np.int64]
    "Offsets of each cut row's slots, [len(split_rows) + 1]."
    runs: NDArray[np.int64]
    "Offsets of runs of items, [num_runs + 1]. A run is one whole item, or pieces that cost as much together."

    @property
    def num_slots(self) -> int:
        """Number of partial results."""
        return int(self.split_indptr[-1])


def most_items(num_rows: int, num_edges: int, grain: Grain) -> int:
    """Most items of any cut of so many rows and edges, whatever the degrees."""
    size = piece_size(num_rows + num_edges, grain)
    # A cut row has more than two pieces' edges. It adds one piece besides whole ones, and an item's end on either side.
    return (num_rows + num_edges) // size + most_splits(num_rows, num_edges, grain) * 3 + 2


def most_splits(num_rows: int, num_edges: int, grain: Grain) -> int:
    """Most rows that a cut of so many rows and edges cuts."""
    return min(num_rows, num_edges // (2 * piece_size(num_rows + num_edges, grain)))


def most_slots(num_rows: int, num_edges: int, grain: Grain) -> int:
    """Most slots of any cut of so many rows and edges."""
    size = piece_size(num_rows + num_edges, grain)
    return num_edges // size + most_splits(num_rows, num_edges, grain)


def item_size(cost: int, grain: Grain) -> int:
    """Cost of an item, in edges and rows, of a pass of cost ``cost``."""
    size = max(grain.smallest, -(-cost // grain.num_items))
    return size if grain.largest is None else min(size, grain.largest)


def piece_size(cost: int, grain: Grain) -> int:
    """Most edges of a piece of a cut row, of a pass of cost ``cost``."""
    return min(item_size(cost, grain), PIECE_EDGES)
