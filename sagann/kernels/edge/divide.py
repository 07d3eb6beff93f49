"""Divide: the rows of a pass cut into work items.

The cut is compiled and does not hold Python's lock, because a chunk copied for one pass is cut each time, while other threads
compute.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sagann.jit import compiled
from sagann.kernels.edge.work import FIELDS, Grain, Work, item_size, run_size


def divide(indptr: NDArray[np.integer], grain: Grain) -> Work:
    """Cut the rows of ``indptr`` [num_rows + 1] into items. A row costs as much as an edge.

    Items of cut rows come first, in order of their slots.

    Example:
        >>> work = divide(np.array([0, 1, 2, 9]), Grain(num_items=4, smallest=1))
        >>> work.items.tolist()
        [[2, 3, 2, 5, 0], [2, 3, 5, 8, 1], [2, 3, 8, 9, 2], [0, 2, 0, 2, -1]]
    """
    cost = len(indptr) - 1 + int(indptr[-1])
    size = item_size(cost, grain)
    num_splits, num_slots = _count_cut(indptr, size)
    # Besides the items of cut rows: one ends where a share is full, and one before each cut row.
    items = np.empty((num_slots + cost // size + num_splits + 2, FIELDS), np.int64)
    split_rows, split_indptr = np.empty(num_splits, np.int64), np.zeros(num_splits + 1, np.int64)
    num_items = _cut(indptr, size, num_slots, items, split_rows, split_indptr)
    step = run_size(cost, grain) // size
    runs = np.arange(0, num_items + step, step)
    runs[-1] = num_items
    return Work(items=items[:num_items], split_rows=split_rows, split_indptr=split_indptr, runs=runs)


@compiled()
def _count_cut(indptr: NDArray[np.integer], size: int) -> tuple[int, int]:
    """Number of rows that are cut, and number of their items."""
    num_splits, num_slots = 0, 0
    for row in range(len(indptr) - 1):
        degree = indptr[row + 1] - indptr[row]
        if degree > 2 * size:
            num_splits += 1
            num_slots += (degree + size - 1) // size
    return num_splits, num_slots


@compiled()
def _cut(
    indptr: NDArray[np.integer],
    size: int,
    num_slots: int,
    items: NDArray[np.int64],
    split_rows: NDArray[np.int64],
    split_indptr: NDArray[np.int64],
) -> int:
    """Write the items and the cut rows, and return the number of items."""
    num_rows = len(indptr) - 1
    splits, slot, count = 0, 0, num_slots
    first, share_ends = 0, size
    for row in range(num_rows + 1):
        is_split = row < num_rows and indptr[row + 1] - indptr[row] > 2 * size
        cost = indptr[row] + row
        is_full = cost >= share_ends
        if is_full:
            share_ends = (cost // size + 1) * size
        if row > first and (is_split or is_full or row == num_rows):
            _write(items[count], first, row, indptr[first], indptr[row], -1)
            count, first = count + 1, row
        if is_split:
            split_rows[splits] = row
            for edge in range(indptr[row], indptr[row + 1], size):
                _write(items[slot], row, row + 1, edge, min(edge + size, indptr[row + 1]), slot)
                slot += 1
            splits, first = splits + 1, row + 1
            split_indptr[splits] = slot
    return count


@compiled()
def _write(
    item: NDArray[np.int64], first_row: int, last_row: int, first_edge: int, last_edge: int, slot: int
) -> None:
    item[0], item[1], item[2], item[3], item[4] = first_row, last_row, first_edge, last_edge, slot
