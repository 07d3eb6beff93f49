"""What merges of cut rows share: a program merges one group of slots for one tile of lanes.

Legend: p_ pointers, o_ offsets, m_ masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge.gpu.layout import power_of_two

TILE = 128


@triton.jit
def slots_of(p_groups: tl.tensor) -> tl.tuple:
    """First slot of the program's group, the slot after its last, and where the result goes."""
    p_group = p_groups + tl.program_id(0) * 3
    return tl.load(p_group), tl.load(p_group + 1), tl.load(p_group + 2)


@triton.jit
def lanes_of(num_lanes: tl.tensor, tile: tl.constexpr) -> tl.tuple:
    """Lanes of the program's tile, and which of them exist."""
    o_lane = tl.program_id(1) * tile + tl.arange(0, tile)
    return o_lane, o_lane < num_lanes


@triton.jit
def row_of(p_slots: tl.tensor, p_out: tl.tensor, target: tl.tensor, width: tl.tensor) -> tl.tensor:
    """Where a group's row of ``width`` numbers begins: among the results, or, below 0, in the slot -target - 1."""
    p_row = p_out + target * width
    if target < 0:
        p_row = p_slots + (-target - 1) * width
    return p_row


def launch(kernel: Any, groups: Tensor, pairs: Sequence[Tensor], *numbers: int, **constants: Any) -> None:
    """Merge one level of a tree.

    Args:
        kernel: takes groups, the tensors, the number of lanes, further numbers, and constants.
        groups: first and last slot, and where the result goes: [num_groups, 3].
        pairs: slots and results of each tensor of a state.
        numbers: what the kernel takes besides.
        constants: of the kernel.
    """
    num_lanes = pairs[0][0].numel()
    tile = min(TILE, power_of_two(num_lanes))
    grid = (len(groups), triton.cdiv(num_lanes, tile))
    kernel[grid](groups, *pairs, num_lanes, *numbers, tile=tile, num_warps=1, **constants)
