"""How merges of cut rows are launched: a program merges one group of slots for one tile of lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
from torch import Tensor

from sagann.kernels.edge.gpu.layout import power_of_two

TILE = 128


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
