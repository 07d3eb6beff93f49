"""Work items: a pass over the edges cut into pieces of equal cost, the same whatever computes them.

An item is a range of rows with about as many edges as any other; a row with very many edges is cut into several
items, whose partial results go to slots and are merged in order. Since the cut depends on the offsets alone, so
does every rounding: results are bitwise the same for any number of threads or processors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FIELDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Grain:
    """How finely a dialect wants its work cut; in edges, a row costing as much as one."""

    num_items: int
    "Enough items for a balanced end."
    smallest: int
    "None so small that starting it costs more than doing it."
    largest: int | None = None
    "None so large that others wait for it; no limit by default."


DEVICE_GRAIN = Grain(num_items=1 << 14, smallest=64, largest=512)
"Of CUDA devices: several waves of programs on the largest; an item is short enough that none waits for the last."


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The items of one pass."""

    items: NDArray[np.int64]
    "[num_items, 5]: first row, last row (exclusive), first edge, last edge (exclusive), slot or -1."
    split_rows: NDArray[np.int64]
    "Rows cut into several items."
    split_indptr: NDArray[np.int64]
    "Offsets of each cut row's slots, [len(split_rows) + 1]."

    @property
    def num_slots(self) -> int:
        """Number of partial results."""
        return int(self.split_indptr[-1])


def most_items(num_rows: int, num_edges: int, grain: Grain) -> int:
    """No cut of so many rows and edges has more items, whatever the degrees."""
    size = item_size(num_rows + num_edges, grain)
    # A row that is cut has more than two items' edges: a piece more than whole ones, and a bound at either end.
    return (num_rows + num_edges) // size + most_splits(num_rows, num_edges, grain) * 3 + 2


def most_splits(num_rows: int, num_edges: int, grain: Grain) -> int:
    """No cut of so many rows and edges cuts more rows."""
    return min(num_rows, num_edges // (2 * item_size(num_rows + num_edges, grain)))


def most_slots(num_rows: int, num_edges: int, grain: Grain) -> int:
    """No cut of so many rows and edges has more partial results of rows."""
    size = item_size(num_rows + num_edges, grain)
    return num_edges // size + most_splits(num_rows, num_edges, grain)


def item_size(cost: int, grain: Grain) -> int:
    """Edges and rows of an item, of so many in all."""
    size = max(grain.smallest, -(-cost // grain.num_items))
    return size if grain.largest is None else min(size, grain.largest)
