"""Put together the partial results of rows that were cut into several work items, neighbours first.

A pass has few such rows; a dozen of PyTorch's operators for every round of a tree took up to a fifth of a pass over a
small graph, so each reduction has a compiled merge (:mod:`sagann.kernels.edge.cpu.reductions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sagann.kernels.edge.cpu.reductions import MERGES
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import merged_results
from sagann.kernels.edge.work import Work
from sagann.machine_code import compiled

Array = NDArray[Any]


def merge_slots(
    function: EdgeFunction, outs: Sequence[Tensor], slots: Sequence[Tensor], work: Work, *, continued: bool
) -> None:
    """Write the rows of ``work.split_rows`` to ``outs``; the slots are used up.

    Args:
        function: says how each result is reduced.
        outs: the results, contiguous [num_rows, ...] each.
        slots: the partial results, contiguous [num_slots, ...] each; those of a row side by side.
        work: the cut.
        continued: whether ``outs`` holds results to be merged with.
    """
    left, right = _neighbours_first(work.split_indptr)
    rows, first = work.split_rows, work.split_indptr[:-1]
    for reduction, here in merged_results(function):
        merge, results, parts = MERGES[reduction.name], _flat(outs[here]), _flat(slots[here])
        merge(left, right, *parts, *parts)
        if continued:
            merge(rows, first, *results, *parts)
        else:
            for result, part in zip(results, parts, strict=True):
                result[rows] = part[first]


def _flat(tensors: Sequence[Tensor]) -> list[Array]:
    """Views [num_rows, lanes]."""
    return [tensor.numpy().reshape(len(tensor), -1) for tensor in tensors]


@compiled()
def _neighbours_first(split_indptr: Array) -> tuple[Array, Array]:
    """Slots that take another one in, and the others, in turn; at the end a row's first slot has all of it."""
    num_merges = split_indptr[-1] - (len(split_indptr) - 1)
    left, right = np.empty(num_merges, np.int64), np.empty(num_merges, np.int64)
    count = 0
    for split in range(len(split_indptr) - 1):
        first, last = split_indptr[split], split_indptr[split + 1]
        step = 1
        while first + step < last:
            for slot in range(first, last - step, 2 * step):
                left[count], right[count] = slot, slot + step
                count += 1
            step *= 2
    return left, right
