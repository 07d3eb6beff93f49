"""Merge partial results on the device, level by level of a tree: no atomics, and always the same order.

Legend: a program merges one group of slots (axis 0) for one tile of lanes (axis 1). p_ pointers, b_ values read,
o_ offsets, m_ masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.gpu import device
from sagann.kernels.edge.gpu.layout import power_of_two
from sagann.kernels.edge.kinds import merged_results
from sagann.kernels.edge.merge import merge

TILE = 128
# Slots at a time.
SLOTS = tl.constexpr(8)


@triton.jit
def merge_sum(
    p_groups: tl.tensor, p_slots: tl.tensor, p_out: tl.tensor, num_lanes: tl.tensor, tile: tl.constexpr
) -> None:
    """The sum of a group's slots."""
    p_group = p_groups + tl.program_id(0) * 3
    first, last, target = tl.load(p_group), tl.load(p_group + 1), tl.load(p_group + 2)
    o_lane = tl.program_id(1) * tile + tl.arange(0, tile)
    m_lane = o_lane < num_lanes
    total = tl.zeros([SLOTS, tile], p_slots.dtype.element_ty)
    for at in range(first, last, SLOTS):
        slot = at + tl.arange(0, SLOTS).to(tl.int64)
        m_slot = (slot < last)[:, None] & m_lane[None, :]
        total += tl.load(p_slots + (slot * num_lanes)[:, None] + o_lane[None, :], mask=m_slot, other=0)
    p_to = p_out + target * num_lanes
    if target < 0:
        p_to = p_slots + (-target - 1) * num_lanes
    tl.store(p_to + o_lane, tl.sum(total, 0), mask=m_lane)


@triton.jit
def merge_extremum(
    p_groups: tl.tensor,
    p_slots: tl.tensor,
    p_out: tl.tensor,
    p_slots_where: tl.tensor,
    p_out_where: tl.tensor,
    num_lanes: tl.tensor,
    largest: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """The extremum of a group's slots, and the edge of the first that attains it."""
    p_group = p_groups + tl.program_id(0) * 3
    first, last, target = tl.load(p_group), tl.load(p_group + 1), tl.load(p_group + 2)
    o_lane = tl.program_id(1) * tile + tl.arange(0, tile)
    m_lane = o_lane < num_lanes
    best = tl.load(p_slots + first * num_lanes + o_lane, mask=m_lane, other=0)
    where = tl.load(p_slots_where + first * num_lanes + o_lane, mask=m_lane, other=0)
    for slot in range(first + 1, last):
        b_value = tl.load(p_slots + slot * num_lanes + o_lane, mask=m_lane, other=0)
        b_where = tl.load(p_slots_where + slot * num_lanes + o_lane, mask=m_lane, other=0)
        beyond = b_value > best if largest else b_value < best
        better = beyond | ((b_value != b_value) & (best == best))
        best = tl.where(better, b_value, best)
        where = tl.where(better, b_where, where)
    p_to, p_to_where = p_out + target * num_lanes, p_out_where + target * num_lanes
    if target < 0:
        p_to = p_slots + (-target - 1) * num_lanes
        p_to_where = p_slots_where + (-target - 1) * num_lanes
    tl.store(p_to + o_lane, best, mask=m_lane)
    tl.store(p_to_where + o_lane, where, mask=m_lane)


@triton.jit
def merge_softmax(
    p_groups: tl.tensor,
    p_slots: tl.tensor,
    p_out: tl.tensor,
    p_slots_top: tl.tensor,
    p_out_top: tl.tensor,
    p_slots_weight: tl.tensor,
    p_out_weight: tl.tensor,
    num_lanes: tl.tensor,
    num_scores: tl.tensor,
    lowest: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """The mean of a group's means, weighted by their softmax denominators, the largest score, and the denominator."""
    p_group = p_groups + tl.program_id(0) * 3
    first, last, target = tl.load(p_group), tl.load(p_group + 1), tl.load(p_group + 2)
    o_lane = tl.program_id(1) * tile + tl.arange(0, tile)
    m_lane = o_lane < num_lanes
    # The score's shape begins the value's.
    o_score = o_lane // (num_lanes // num_scores)
    top = tl.full([tile], lowest, p_slots.dtype.element_ty)
    for slot in range(first, last):
        b_top = tl.load(p_slots_top + slot * num_scores + o_score, mask=m_lane, other=lowest)
        top = device.maximum(b_top, top)
    weight = tl.zeros([tile], p_slots.dtype.element_ty)
    total = tl.zeros([tile], p_slots.dtype.element_ty)
    for slot in range(first, last):
        b_top = tl.load(p_slots_top + slot * num_scores + o_score, mask=m_lane, other=lowest)
        b_weight = tl.load(p_slots_weight + slot * num_scores + o_score, mask=m_lane, other=0)
        b_mean = tl.load(p_slots + slot * num_lanes + o_lane, mask=m_lane, other=0)
        share = b_weight * device.exp(b_top - top)
        weight += share
        # Where all scores were -inf the mean is 0 / 0, but weighs nothing.
        total += tl.where(share == 0, 0.0, share * b_mean)
    p_to, p_to_score = p_out + target * num_lanes, target * num_scores + o_score
    p_to_top, p_to_weight = p_out_top + p_to_score, p_out_weight + p_to_score
    if target < 0:
        p_to = p_slots + (-target - 1) * num_lanes
        p_to_top = p_slots_top + (-target - 1) * num_scores + o_score
        p_to_weight = p_slots_weight + (-target - 1) * num_scores + o_score
    tl.store(p_to + o_lane, total / weight, mask=m_lane)
    # Lanes of one score write the same number.
    tl.store(p_to_top, top, mask=m_lane)
    tl.store(p_to_weight, weight, mask=m_lane)


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
    for reduce, here in merged_results(function):
        pairs = [tensor for pair in zip(slots[here], outs[here], strict=True) for tensor in pair]
        for groups in levels:
            _merge(reduce, groups, pairs)


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
    for (reduce, here), before in zip(merged_results(function), known, strict=True):
        merge(reduce, before, [out[split_rows] for out in outs[here]])
        for out, rows in zip(outs[here], before, strict=True):
            out[split_rows] = rows


def merge_total(out: Tensor, slots: Tensor, levels: Sequence[Tensor]) -> None:
    """Sum the partial results of all items."""
    for groups in levels:
        _merge("sum", groups, [slots, out])


def _merge(reduce: str, groups: Tensor, pairs: Sequence[Tensor]) -> None:
    num_lanes = pairs[0][0].numel()
    tile = min(TILE, power_of_two(num_lanes))
    grid = (len(groups), triton.cdiv(num_lanes, tile))
    if reduce == "sum":
        merge_sum[grid](groups, *pairs, num_lanes, tile=tile, num_warps=1)
    elif reduce in ("max", "min"):
        merge_extremum[grid](groups, *pairs, num_lanes, largest=reduce == "max", tile=tile, num_warps=1)
    else:
        lowest, num_scores = torch.finfo(pairs[0].dtype).min, pairs[2][0].numel()
        merge_softmax[grid](groups, *pairs, num_lanes, num_scores, lowest=lowest, tile=tile, num_warps=1)
