"""Sort each row of ids in ascending order, so that the in-edges of every vertex ascend by source.

The order of the edges then does not depend on the order of a user's list. The order is also the same for any number of
source intervals, so the first of several equal extrema is always the same edge.

A row that is sorted already is only read. Short rows are sorted by insertion, long rows by their digits, from the least
significant digit on (Knuth, The Art of Computer Programming 3, Sec. 5.2.5). Both sorts are stable. The sort by digits
takes memory for one copy of a row in each thread. Threads take ranges of rows with about equal numbers of ids.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from sagann.graph.counting_sort import ITEMS_PER_THREAD
from sagann.graph.large_arrays import SLAB_EDGES, slabs
from sagann.jit import Array, compiled, pytorch_threads

# Up to this number of ids, insertion is faster than counting digits.
_SHORT = 64
_DIGIT_BITS = 8
# Number of ranges of rows for each thread: some ranges take longer than others.
_TASKS_PER_THREAD = 16


def sort_rows(indptr: Tensor, ids: Tensor, positions: Tensor | None = None) -> None:
    """Sort each row's ids, stably and in place, and permute their positions in the same way.

    The ids are at least 0; both arrays are contiguous. An empty array stands for no positions. To permute further data, index the data with the positions.
    """
    positions = ids.new_empty(0, dtype=torch.int32) if positions is None else positions
    if ids.device.type != "cpu":
        _sort_on_device(indptr, ids, positions)
        return
    arrays = indptr.numpy(), ids.numpy(), positions.numpy()
    num_rows = len(indptr) - 1
    if len(ids) <= ITEMS_PER_THREAD:
        sort_range(*arrays, 0, num_rows)
        return
    with pytorch_threads() as threads:
        num_tasks = min(_TASKS_PER_THREAD * threads, -(-len(ids) // ITEMS_PER_THREAD))
        ends = torch.arange(1, num_tasks) * len(ids) // num_tasks
        inner = torch.searchsorted(indptr, ends).clamp_(max=num_rows).tolist()
        _sort_tasks(*arrays, np.array([0, *inner, num_rows]))


def rows_ascend(indptr: Tensor, ids: Tensor) -> bool:
    """Whether the ids of each row ascend; equal ones may follow one another. Arrays that are mapped from files are read slab by slab."""
    for rows, part in slabs(indptr, SLAB_EDGES):
        falls = ids[part][1:] < ids[part][:-1]
        # Between two rows, ids may fall.
        between = indptr[rows.start + 1 : rows.stop] - part.start - 1
        falls[between[(between >= 0) & (between < len(falls))]] = False
        if bool(falls.any()):
            return False
    return True


def _sort_on_device(indptr: Tensor, ids: Tensor, positions: Tensor) -> None:
    # Numba's kernels run on the host, so a device sorts twice, stably: by id, then by row.
    rows = torch.repeat_interleave(indptr.diff(), output_size=len(ids))
    order = torch.sort(ids, stable=True).indices
    order = order[torch.sort(rows[order], stable=True).indices]
    for carried in (ids, positions):
        if len(carried):
            carried.copy_(carried[order])


@compiled(parallel=True)
def _sort_tasks(indptr: Array, ids: Array, positions: Array, bounds: Array) -> None:
    for task in prange(len(bounds) - 1):
        sort_range(indptr, ids, positions, bounds[task], bounds[task + 1])


@compiled()
def sort_range(indptr: Array, ids: Array, positions: Array, first: int, stop: int) -> None:
    """Sort rows ``first`` to ``stop - 1`` on the calling thread; an empty array stands for no positions."""
    for row in range(first, stop):
        begin, end = indptr[row], indptr[row + 1]
        falls = False
        for e in range(begin + 1, end):
            falls |= ids[e] < ids[e - 1]
        if not falls:
            continue
        if end - begin <= _SHORT:
            _insert(ids[begin:end], positions[begin:end])
        else:
            _sort_digits(ids[begin:end], positions[begin:end])


@compiled()
def _insert(ids: Array, positions: Array) -> None:
    carries = len(positions) > 0
    for e in range(1, len(ids)):
        moved = ids[e]
        position = positions[e] if carries else 0
        at = e
        while at > 0 and ids[at - 1] > moved:
            ids[at] = ids[at - 1]
            if carries:
                positions[at] = positions[at - 1]
            at -= 1
        ids[at] = moved
        if carries:
            positions[at] = position


@compiled()
def _sort_digits(ids: Array, positions: Array) -> None:
    left = ids.max()
    heads = np.empty(1 << _DIGIT_BITS, dtype=np.int64)
    other_ids, other_positions = np.empty_like(ids), np.empty_like(positions)
    shift = 0
    # Two digits in each round: the first sort writes into the second arrays, the second sort writes back.
    while left > 0:
        _sort_digit(ids, positions, other_ids, other_positions, shift, heads)
        _sort_digit(other_ids, other_positions, ids, positions, shift + _DIGIT_BITS, heads)
        shift += 2 * _DIGIT_BITS
        left >>= 2 * _DIGIT_BITS


@compiled()
def _sort_digit(
    ids: Array, positions: Array, into_ids: Array, into_positions: Array, shift: int, heads: Array
) -> None:
    mask = len(heads) - 1
    heads[:] = 0
    for e in range(len(ids)):
        heads[(ids[e] >> shift) & mask] += 1
    total = 0
    for digit in range(len(heads)):
        count = heads[digit]
        heads[digit] = total
        total += count
    for e in range(len(ids)):
        digit = (ids[e] >> shift) & mask
        at = heads[digit]
        heads[digit] = at + 1
        into_ids[at] = ids[e]
        if len(positions) > 0:
            into_positions[at] = positions[e]
