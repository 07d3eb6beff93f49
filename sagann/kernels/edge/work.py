"""Work items: a pass over the edges cut into pieces of about equal cost.

An item is a range of rows. A row with very many edges is cut into several items, whose partial results go to slots and are
merged in order. Items are short because a sum of very many terms, one after the other, drifts in float32. The cut, and so every
rounding, depends on the offsets alone: results are bitwise the same for any number of threads or processors.
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
    "Number of items, or of runs of items, of a large pass: enough to keep all threads busy to the end."
    smallest: int
    "Least cost of an item or run, in edges, so that starting it costs less than its work."
    largest: int | None = None
    "Most cost of an item, in edges, so that a sum over them is exact and no other program waits for it long; None for no limit."


MOST_TERMS = 512
"Most cost of an item. A row of twice as many edges is not cut."
HOST_GRAIN = Grain(num_items=128, smallest=2048, largest=MOST_TERMS)
DEVICE_GRAIN = Grain(num_items=1 << 14, smallest=64, largest=MOST_TERMS)
"Grain of CUDA devices: several waves of programs on the largest device, and short items."


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The items of one pass."""

    items: NDArray[np.int64]
    "[num_items, 5]: first row, last row (exclusive), first edge, last edge (exclusive), slot or -1."
    split_rows: NDArray[np.int64]
    split_indptr: NDArray[np.int64]
    "Offsets of each cut row's slots, [len(split_rows) + 1]."
    runs: NDArray[np.int64]
    "Offsets of runs of items, [num_runs + 1], which a thread takes at a time."

    @property
    def num_slots(self) -> int:
        """Number of partial results."""
        return int(self.split_indptr[-1])


def most_items(num_rows: int, num_edges: int, grain: Grain) -> int:
    """Most items of any cut of so many rows and edges, whatever the degrees."""
    size = item_size(num_rows + num_edges, grain)
    # A cut row has more than two items' edges. It adds one piece besides whole ones, and an item's end on either side.
    return (num_rows + num_edges) // size + most_splits(num_rows, num_edges, grain) * 3 + 2


def most_splits(num_rows: int, num_edges: int, grain: Grain) -> int:
    """Most rows that a cut of so many rows and edges cuts."""
    return min(num_rows, num_edges // (2 * item_size(num_rows + num_edges, grain)))


def most_slots(num_rows: int, num_edges: int, grain: Grain) -> int:
    """Most slots of any cut of so many rows and edges."""
    size = item_size(num_rows + num_edges, grain)
    return num_edges // size + most_splits(num_rows, num_edges, grain)


def item_size(cost: int, grain: Grain) -> int:
    """Cost of an item, in edges and rows, of a pass of cost ``cost``."""
    size = run_size(cost, grain)
    return size if grain.largest is None else min(size, grain.largest)


def run_size(cost: int, grain: Grain) -> int:
    """Cost of a run of items, in edges and rows, of a pass of cost ``cost``."""
    return max(grain.smallest, -(-cost // grain.num_items))
