"""Put together the partial results of rows that were cut into several work items, neighbours first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.merge import merge
from sagann.kernels.edge.work import Work


def merge_slots(
    function: EdgeFunction, outs: Sequence[Tensor], slots: Sequence[Tensor], work: Work, *, continued: bool
) -> None:
    """Write the rows of ``work.split_rows`` to ``outs``; the slots are used up.

    Args:
        function: says how each result is reduced.
        outs: the results, [num_rows, ...] each.
        slots: the partial results, [num_slots, ...] each; those of a row side by side.
        work: the cut.
        continued: whether ``outs`` holds results to be merged with.
    """
    rounds = _rounds(work)
    rows, first = torch.from_numpy(work.split_rows), torch.from_numpy(work.split_indptr[:-1])
    result = 0
    for output in function.outputs:
        here = slice(result, result + output.num_results)
        result += output.num_results
        if output.reduce in ("edge", "total"):
            continue
        for left, right in rounds:
            _merge_at(output.reduce, slots[here], left, [slot[right] for slot in slots[here]])
        parts = [slot[first] for slot in slots[here]]
        if continued:
            _merge_at(output.reduce, outs[here], rows, parts)
        else:
            for out, part in zip(outs[here], parts, strict=True):
                out[rows] = part


def _rounds(work: Work) -> list[tuple[Tensor, Tensor]]:
    """Slots that take another one in, and the others, round by round; at the end a row's first slot has all."""
    counts = np.diff(work.split_indptr)
    within = np.arange(work.num_slots) - np.repeat(work.split_indptr[:-1], counts)
    last = np.repeat(counts, counts)
    rounds, step = [], 1
    while step < counts.max():
        left = np.flatnonzero((within % (2 * step) == 0) & (within + step < last))
        rounds.append((torch.from_numpy(left), torch.from_numpy(left + step)))
        step *= 2
    return rounds


def _merge_at(reduce: str, into: Sequence[Tensor], rows: Tensor, parts: Sequence[Tensor]) -> None:
    merged = [tensor[rows] for tensor in into]
    merge(reduce, merged, parts)
    for tensor, row in zip(into, merged, strict=True):
        tensor[rows] = row
