"""Merge the partial results of rows that were cut into several work items, neighbours first.

Every reduction has a compiled merge. A pass has few cut rows, and the merges of the records, a dozen of PyTorch's operators
for every round of the tree, would take a fifth of a pass over a small graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sagann.jit import compiled
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import merged_results
from sagann.kernels.edge.work import Work

Array = NDArray[Any]
State = tuple[Array, ...]
"The tensors of a state, [rows, lanes] each."

# A merge takes the rows to merge into, the rows to merge, and both states. Row ``rows[i]`` takes in row ``part_rows[i]``.


@compiled()
def _sums(rows: Array, part_rows: Array, state: State, part: State) -> None:
    (total,), (more,) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(total.shape[1]):
            total[row, lane] += more[other, lane]


@compiled()
def _extrema(largest: bool, rows: Array, part_rows: Array, state: State, part: State) -> None:
    (best, edge), (values, where) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(best.shape[1]):
            known, value = best[row, lane], values[other, lane]
            beyond = value > known if largest else value < known
            equal = value == known or (value != value and known != known)
            beyond = beyond or (value != value and known == known)
            earlier = where[other, lane] < edge[row, lane]
            if where[other, lane] >= 0 and (edge[row, lane] < 0 or beyond or (equal and earlier)):
                best[row, lane], edge[row, lane] = value, where[other, lane]


@compiled()
def _moments(rows: Array, part_rows: Array, state: State, part: State) -> None:
    (spread, mean, count), (more_spread, more_mean, more_count) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        known, more = count[row, 0], more_count[other, 0]
        share = more / max(known + more, 1)
        for lane in range(mean.shape[1]):
            distance = more_mean[other, lane] - mean[row, lane]
            spread[row, lane] += more_spread[other, lane] + distance * (distance * (share * known))
            mean[row, lane] += distance * share
        count[row, 0] = known + more


@compiled()
def _products(rows: Array, part_rows: Array, state: State, part: State) -> None:
    (product, zeros), (more, more_zeros) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        for lane in range(product.shape[1]):
            product[row, lane] *= more[other, lane]
            zeros[row, lane] += more_zeros[other, lane]


@compiled()
def _softmax(rows: Array, part_rows: Array, state: State, part: State) -> None:
    (mean, top, weight), (more_mean, peak, share) = state, part
    for pair in range(len(rows)):
        row, other = rows[pair], part_rows[pair]
        per_score = mean.shape[1] // top.shape[1]
        for score in range(top.shape[1]):
            highest = np.maximum(top[row, score], peak[other, score])
            # Rows without edges have the exponent -inf - -inf.
            known = weight[row, score] * np.exp(top[row, score] - highest) if weight[row, score] != 0 else 0.0
            more = share[other, score] * np.exp(peak[other, score] - highest) if share[other, score] != 0 else 0.0
            for lane in range(score * per_score, (score + 1) * per_score):
                if known + more == 0:
                    mean[row, lane] += more_mean[other, lane]
                    continue
                # A mean of weight 0 may be 0 / 0.
                kept = mean[row, lane] * known if known != 0 else 0.0
                added = more_mean[other, lane] * more if more != 0 else 0.0
                mean[row, lane] = (kept + added) / (known + more)
            top[row, score], weight[row, score] = highest, known + more


MERGES: Mapping[str, Callable[..., None]] = {
    "sum": _sums,
    "max": partial(_extrema, True),
    "min": partial(_extrema, False),
    "softmax": _softmax,
    "moments": _moments,
    "product": _products,
}
"Compiled merges by the name of the reduction."


def merge_slots(
    function: EdgeFunction, outs: Sequence[Tensor], slots: Sequence[Tensor], work: Work, *, continued: bool
) -> None:
    """Write the rows of ``work.split_rows`` to ``outs``, [num_rows, ...], or merge them with the earlier results there.

    ``slots`` are the partial results, [num_slots, ...], those of a row side by side. They are overwritten.
    """
    left, right = _neighbours_first(work.split_indptr)
    rows, first = work.split_rows, work.split_indptr[:-1]
    for reduction, here in merged_results(function):
        merge, results, parts = MERGES[reduction.name], _flat(outs[here]), _flat(slots[here])
        merge(left, right, parts, parts)
        if continued:
            merge(rows, first, results, parts)
        else:
            for result, part in zip(results, parts, strict=True):
                result[rows] = part[first]


def _flat(tensors: Sequence[Tensor]) -> State:
    return tuple(tensor.numpy().reshape(len(tensor), -1) for tensor in tensors)


@compiled()
def _neighbours_first(split_indptr: Array) -> tuple[Array, Array]:
    """Pairs of slots to merge, in order: the slot that takes in, and the other. A row's first slot ends with the whole row."""
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
