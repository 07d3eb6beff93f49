"""Dropout of rows on a CUDA device: a program masks one tile of values.

Legend: p_ pointers, b_ values, o_ offsets, m_ masks.
"""

# Arguments of Triton's functions are tensors where no type is stated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge import random
from sagann.kernels.edge.gpu import device
from sagann.kernels.seeds import device_seed

if TYPE_CHECKING:
    from sagann.kernels.row_dropout import Mask

TILE = 1024
"Values of a program."


@triton.jit(do_not_specialize=["p_seed"])
def _drop_tile(
    p_x,
    p_out,
    p_ids,
    num_values,
    width,
    first,
    p_seed,
    threshold: tl.constexpr,
    scale: tl.constexpr,
    tile: tl.constexpr,
    has_ids: tl.constexpr,
):
    o_value = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    m_value = o_value < num_values
    b_x = tl.load(p_x + o_value, mask=m_value)
    if has_ids:
        row = tl.load(p_ids + o_value // width, mask=m_value, other=0)
    else:
        row = first.to(tl.int64) + o_value // width
    factor = device.draw(row, o_value % width, tl.load(p_seed), 0, threshold, scale, b_x.dtype)
    tl.store(p_out + o_value, b_x * factor, mask=m_value)


def drop_rows(x: Tensor, out: Tensor, width: int, mask: Mask) -> None:
    """See :func:`sagann.kernels.row_dropout.cpu.drop_rows`."""
    threshold, scale = random.threshold(mask.p), random.scale(mask.p)
    grid = (triton.cdiv(x.numel(), TILE),)
    # Without ids any pointer does.
    ids = x if mask.ids is None else mask.ids_of(x)
    of_rows = (mask.first, device_seed(mask.seed, x.device), threshold, scale)
    _drop_tile[grid](x, out, ids, x.numel(), width, *of_rows, tile=TILE, has_ids=mask.ids is not None)
