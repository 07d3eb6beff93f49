"""Merge partial results on the device, level by level of a tree: no atomics, and always the same order."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.gpu.reductions import MERGES
from sagann.kernels.edge.gpu.reductions.sums import merge_sums
from sagann.kernels.edge.kinds import merged_results


def merge_rows(
    function: EdgeFunction, outs: Sequence[Tensor], slots: Sequence[Tensor], levels: Sequence[Tensor]
) -> None:
    """Write the rows that were cut into several items.

    Args:
        function: says how each result is reduced.
        outs: the results, [num_rows, ...] each.
        slots: the partial results, [num_slots, ...] each.
        levels: of the tree, on the device.
    """
    for reduction, here in merged_results(function):
        pairs = [tensor for pair in zip(slots[here], outs[here], strict=True) for tensor in pair]
        for groups in levels:
            MERGES[reduction.name](groups, pairs)


def merge_more_rows(
    function: EdgeFunction,
    outs: Sequence[Tensor],
    slots: Sequence[Tensor],
    levels: Sequence[Tensor],
    split_rows: Tensor,
) -> None:
    """Merge the rows that were cut into what ``outs`` holds of them.

    Args:
        function: says how each result is reduced.
        outs: the results so far, [num_rows, ...] each.
        slots: the partial results, [num_slots, ...] each.
        levels: of the tree, on the device.
        split_rows: the rows that were cut, on the device.
    """
    if not levels:
        return
    known = [[out[split_rows] for out in outs[here]] for _, here in merged_results(function)]
    merge_rows(function, outs, slots, levels)
    for (reduction, here), before in zip(merged_results(function), known, strict=True):
        reduction.merge(before, [out[split_rows] for out in outs[here]])
        for out, rows in zip(outs[here], before, strict=True):
            out[split_rows] = rows


def merge_total(out: Tensor, slots: Tensor, levels: Sequence[Tensor]) -> None:
    """Sum the partial results of all items."""
    for groups in levels:
        merge_sums(groups, [slots, out])
