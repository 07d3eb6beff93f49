"""Merge partial results on the device, level by level of a tree: no atomics, and always the same order.

Every reduction has a Triton kernel that merges one level. A program merges one group of slots for one tile of lanes.

Legend: p_ pointers, b_ values read, o_ offsets, m_ masks.
"""

# Arguments of Triton's functions are tensors where no type is stated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge.function import EdgeFunction, merged_results
from sagann.kernels.edge.gpu import device
from sagann.kernels.edge.gpu.layout import power_of_two

# Lanes of a program.
TILE = 128
# Slots that a sum takes at a time.
SLOTS = tl.constexpr(8)


@triton.jit
def _slots_of(p_groups):
    """First slot of the program's group, the slot after its last, and the target of the result."""
    p_group = p_groups + tl.program_id(0) * 3
    return tl.load(p_group), tl.load(p_group + 1), tl.load(p_group + 2)


@triton.jit
def _lanes_of(num_lanes, tile: tl.constexpr):
    """Lanes of the program's tile, and the mask of those that exist."""
    o_lane = tl.program_id(1) * tile + tl.arange(0, tile)
    return o_lane, o_lane < num_lanes


@triton.jit
def _row_of(p_slots, p_out, target, width):
    """First number of a group's row of ``width`` numbers: in the results, or, for a target below 0, in slot -target - 1."""
    p_row = p_out + target * width
    if target < 0:
        p_row = p_slots + (-target - 1) * width
    return p_row


@triton.jit
def sum_of_slots(p_groups, p_slots, p_out, num_lanes, adds: tl.constexpr, tile: tl.constexpr):
    first, last, target = _slots_of(p_groups)
    o_lane, m_lane = _lanes_of(num_lanes, tile)
    total = tl.zeros([SLOTS, tile], p_slots.dtype.element_ty)
    for at in range(first, last, SLOTS):
        slot = at + tl.arange(0, SLOTS).to(tl.int64)
        m_slot = (slot < last)[:, None] & m_lane[None, :]
        total += tl.load(p_slots + (slot * num_lanes)[:, None] + o_lane[None, :], mask=m_slot, other=0)
    merged = tl.sum(total, 0)
    p_row = _row_of(p_slots, p_out, target, num_lanes) + o_lane
    if adds:
        merged += tl.load(p_row, mask=m_lane & (target >= 0), other=0)
    tl.store(p_row, merged, mask=m_lane)


@triton.jit
def extremum_of_slots(
    p_groups, p_slots, p_out, p_slots_where, p_out_where, num_lanes, largest: tl.constexpr, tile: tl.constexpr
):
    first, last, target = _slots_of(p_groups)
    o_lane, m_lane = _lanes_of(num_lanes, tile)
    best = tl.load(p_slots + first * num_lanes + o_lane, mask=m_lane, other=0)
    where = tl.load(p_slots_where + first * num_lanes + o_lane, mask=m_lane, other=0)
    for slot in range(first + 1, last):
        b_value = tl.load(p_slots + slot * num_lanes + o_lane, mask=m_lane, other=0)
        b_where = tl.load(p_slots_where + slot * num_lanes + o_lane, mask=m_lane, other=0)
        beyond = b_value > best if largest else b_value < best
        better = beyond | ((b_value != b_value) & (best == best))
        best = tl.where(better, b_value, best)
        where = tl.where(better, b_where, where)
    tl.store(_row_of(p_slots, p_out, target, num_lanes) + o_lane, best, mask=m_lane)
    tl.store(_row_of(p_slots_where, p_out_where, target, num_lanes) + o_lane, where, mask=m_lane)


@triton.jit
def moments_of_slots(
    p_groups, p_slots, p_out, p_slots_mean, p_out_mean, p_slots_count, p_out_count, num_lanes, tile: tl.constexpr
):
    first, last, target = _slots_of(p_groups)
    o_lane, m_lane = _lanes_of(num_lanes, tile)
    spread = tl.zeros([tile], p_slots.dtype.element_ty)
    mean = tl.zeros([tile], p_slots.dtype.element_ty)
    count = tl.zeros([tile], p_slots.dtype.element_ty)
    for slot in range(first, last):
        b_spread = tl.load(p_slots + slot * num_lanes + o_lane, mask=m_lane, other=0)
        b_mean = tl.load(p_slots_mean + slot * num_lanes + o_lane, mask=m_lane, other=0)
        b_count = tl.load(p_slots_count + slot + o_lane * 0)
        share = b_count / tl.maximum(count + b_count, 1.0)
        apart = b_mean - mean
        spread += b_spread + apart * (apart * (share * count))
        mean += apart * share
        count += b_count
    tl.store(_row_of(p_slots, p_out, target, num_lanes) + o_lane, spread, mask=m_lane)
    tl.store(_row_of(p_slots_mean, p_out_mean, target, num_lanes) + o_lane, mean, mask=m_lane)
    # All lanes write the same number.
    tl.store(_row_of(p_slots_count, p_out_count, target, 1) + o_lane * 0, count)


@triton.jit
def product_of_slots(p_groups, p_slots, p_out, p_slots_zeros, p_out_zeros, num_lanes, tile: tl.constexpr):
    first, last, target = _slots_of(p_groups)
    o_lane, m_lane = _lanes_of(num_lanes, tile)
    product = tl.full([tile], 1.0, p_slots.dtype.element_ty)
    zeros = tl.zeros([tile], p_slots.dtype.element_ty)
    for slot in range(first, last):
        product *= tl.load(p_slots + slot * num_lanes + o_lane, mask=m_lane, other=1)
        zeros += tl.load(p_slots_zeros + slot * num_lanes + o_lane, mask=m_lane, other=0)
    tl.store(_row_of(p_slots, p_out, target, num_lanes) + o_lane, product, mask=m_lane)
    tl.store(_row_of(p_slots_zeros, p_out_zeros, target, num_lanes) + o_lane, zeros, mask=m_lane)


@triton.jit
def softmax_of_slots(
    p_groups,
    p_slots,
    p_out,
    p_slots_top,
    p_out_top,
    p_slots_weight,
    p_out_weight,
    num_lanes,
    num_scores,
    lowest: tl.constexpr,
    tile: tl.constexpr,
):
    first, last, target = _slots_of(p_groups)
    o_lane, m_lane = _lanes_of(num_lanes, tile)
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
        # Where all scores were -inf the mean is 0 / 0, but has no weight.
        total += tl.where(share == 0, 0.0, share * b_mean)
    tl.store(_row_of(p_slots, p_out, target, num_lanes) + o_lane, total / weight, mask=m_lane)
    # Lanes of one score write the same number.
    tl.store(_row_of(p_slots_top, p_out_top, target, num_scores) + o_score, top, mask=m_lane)
    tl.store(_row_of(p_slots_weight, p_out_weight, target, num_scores) + o_score, weight, mask=m_lane)


def _launch(kernel: Any, groups: Tensor, pairs: Sequence[Tensor], *numbers: int, **constants: Any) -> None:
    """Merge one level of a tree (:class:`sagann.kernels.edge.gpu.cut.Tree`): slots and results of each tensor of a state."""
    num_lanes = pairs[0][0].numel()
    tile = min(TILE, power_of_two(num_lanes))
    grid = (len(groups), triton.cdiv(num_lanes, tile))
    kernel[grid](groups, *pairs, num_lanes, *numbers, tile=tile, num_warps=1, **constants)


def _merge_softmax(groups: Tensor, pairs: Sequence[Tensor]) -> None:
    _launch(softmax_of_slots, groups, pairs, pairs[2][0].numel(), lowest=torch.finfo(pairs[0].dtype).min)


MERGES: Mapping[str, Callable[[Tensor, Sequence[Tensor]], None]] = {
    "sum": partial(_launch, sum_of_slots, adds=False),
    "max": partial(_launch, extremum_of_slots, largest=True),
    "min": partial(_launch, extremum_of_slots, largest=False),
    "softmax": _merge_softmax,
    "moments": partial(_launch, moments_of_slots),
    "product": partial(_launch, product_of_slots),
}
"By the name of the reduction: merges one level of a tree, from its groups and each tensor's slots and results."
CONTINUED: Mapping[str, Callable[[Tensor, Sequence[Tensor]], None]] = {
    "sum": partial(_launch, sum_of_slots, adds=True)
}
"The same for reductions whose merge takes in the earlier results of a row by itself."


def merge_rows(
    function: EdgeFunction,
    outs: Sequence[Tensor],
    slots: Sequence[Tensor],
    levels: Sequence[Tensor],
    continued: Tensor | None,
) -> None:
    """Write the rows that were cut into several items to ``outs``, [num_rows, ...], from ``slots``, [num_slots, ...].

    Where a pass continues, ``continued`` are the rows that were cut, and the earlier results that ``outs`` holds take them in.
    """
    if not levels:
        return
    for reduction, here in merged_results(function):
        pairs = [tensor for pair in zip(slots[here], outs[here], strict=True) for tensor in pair]
        if continued is not None and reduction.name in CONTINUED:
            for groups in levels:
                CONTINUED[reduction.name](groups, pairs)
            continue
        known = [] if continued is None else [out[continued] for out in outs[here]]
        for groups in levels:
            MERGES[reduction.name](groups, pairs)
        if continued is not None:
            reduction.merge(known, [out[continued] for out in outs[here]])
            for out, rows in zip(outs[here], known, strict=True):
                out[continued] = rows
