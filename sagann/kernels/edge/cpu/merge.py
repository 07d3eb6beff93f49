"""Put together the partial results of rows that were cut into several work items, neighbours first.

What is computed is told, and written in PyTorch, in :mod:`sagann.kernels.edge.merge`. A pass has few such rows; a dozen of
PyTorch's operators for every round of a tree took up to a fifth of a pass over a small graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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
    for reduce, here in merged_results(function):
        results, parts = _flat(reduce, outs[here]), _flat(reduce, slots[here])
        _MERGES[reduce](left, right, *parts, *parts)
        if continued:
            _MERGES[reduce](rows, first, *results, *parts)
        else:
            for result, part in zip(results, parts, strict=True):
                result[rows] = part[first]


def _flat(reduce: str, tensors: Sequence[Tensor]) -> list[Array]:
    """Views [num_rows, lanes]; of a softmax's means [num_rows, scores, lanes of a score]."""
    rows: list[Array] = [tensor.numpy().reshape(len(tensor), -1) for tensor in tensors]
    if reduce == "softmax":
        rows[0] = rows[0].reshape(*rows[1].shape, -1)
    return rows


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


# Each takes rows of a part into rows of the same or another one, pair by pair.


@compiled()
def _merge_sums(rows: Array, part_rows: Array, total: Array, part: Array) -> None:
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(total.shape[1]):
            total[row, lane] += part[other, lane]


@compiled()
def _merge_extrema(
    largest: bool, rows: Array, part_rows: Array, best: Array, edge: Array, part: Array, where: Array
) -> None:
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(best.shape[1]):
            known, value = best[row, lane], part[other, lane]
            beyond = value > known if largest else value < known
            equal = value == known or (np.isnan(value) and np.isnan(known))
            beyond = beyond or (np.isnan(value) and not np.isnan(known))
            earlier = where[other, lane] < edge[row, lane]
            if where[other, lane] >= 0 and (edge[row, lane] < 0 or beyond or (equal and earlier)):
                best[row, lane], edge[row, lane] = value, where[other, lane]


@compiled()
def _merge_softmax(
    rows: Array,
    part_rows: Array,
    mean: Array,
    top: Array,
    weight: Array,
    part: Array,
    peak: Array,
    share: Array,
) -> None:
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for score in range(top.shape[1]):
            highest = np.maximum(top[row, score], peak[other, score])
            # Rows without edges have -inf - -inf for an exponent.
            known = weight[row, score] * np.exp(top[row, score] - highest) if weight[row, score] != 0 else 0.0
            more = share[other, score] * np.exp(peak[other, score] - highest) if share[other, score] != 0 else 0.0
            for lane in range(mean.shape[2]):
                if known + more == 0:
                    mean[row, score, lane] += part[other, score, lane]
                    continue
                # What weighs nothing beside others may be 0 / 0.
                kept = mean[row, score, lane] * known if known != 0 else 0.0
                added = part[other, score, lane] * more if more != 0 else 0.0
                mean[row, score, lane] = (kept + added) / (known + more)
            top[row, score], weight[row, score] = highest, known + more


_MERGES: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "sum": _merge_sums,
        "max": partial(_merge_extrema, True),
        "min": partial(_merge_extrema, False),
        "softmax": _merge_softmax,
    }
)
"By reduction: rows taken into, rows taken, results taken into, results taken."
