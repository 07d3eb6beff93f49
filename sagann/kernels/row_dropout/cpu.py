"""Dropout of rows on the CPU: a vector of 16 values is loaded, multiplied by 0 or the scale, and stored.

Legend: p_ addresses, o_ byte offsets, key the number that all draws of a row share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from torch import Tensor

from sagann.jit import compiled_callback
from sagann.kernels.edge import random
from sagann.kernels.edge.cpu.block import (
    I32,
    argument,
    claim,
    constant,
    draws,
    emitted,
    indexer,
    masked_load,
    masked_store,
    row_key,
    splat,
)
from sagann.kernels.edge.cpu.launch import launch

if TYPE_CHECKING:
    from sagann.kernels.row_dropout import Mask

LANES = 16
VALUES_PER_ITEM = 1 << 14
"Values of a work item: enough to make claiming an item cheap, few enough to give every thread some."
_FEATURE_STEP = random.FEATURE_STEP
_id_at = indexer("i8")


def _dropper(element: ir.Type, size: int, *, is_tail: bool) -> Callable[..., None]:
    """``drop(p_x, p_out, count, key, threshold, scale)``: 16 values, or the first ``count`` where it is a tail."""
    vector = ir.VectorType(element, LANES)

    @emitted(types.none, *[types.int64] * 6)
    def drop(
        builder: ir.IRBuilder,
        _signature: Any,
        p_x: ir.Value,
        p_out: ir.Value,
        count: ir.Value,
        key: ir.Value,
        threshold: ir.Value,
        scale: ir.Value,
    ) -> None:
        p_from, p_to = (builder.inttoptr(address, vector.as_pointer()) for address in (p_x, p_out))
        drawn = draws(builder, builder.trunc(key, I32), LANES)
        kept = builder.icmp_unsigned(">=", drawn, splat(builder, builder.trunc(threshold, I32), LANES))
        number = builder.bitcast(scale, ir.DoubleType())
        number = number if size == 8 else builder.fptrunc(number, element)
        factor = builder.select(kept, splat(builder, number, LANES), constant(vector, 0.0))
        if not is_tail:
            builder.store(builder.fmul(builder.load(p_from, align=size), factor), p_to, align=size)
            return
        lanes = ir.Constant(drawn.type, list(range(LANES)))
        within = builder.icmp_signed("<", lanes, splat(builder, builder.trunc(count, I32), LANES))
        product = builder.fmul(masked_load(builder, p_from, within, size), factor)
        masked_store(builder, product, p_to, within, size)

    return drop


_drop_32, _drop_tail_32 = (_dropper(ir.FloatType(), 4, is_tail=is_tail) for is_tail in (False, True))
_drop_64, _drop_tail_64 = (_dropper(ir.DoubleType(), 8, is_tail=is_tail) for is_tail in (False, True))


@compiled_callback
def _drop_rows(p_args):  # type: ignore[no-untyped-def]
    p_counter, num_items = argument(p_args, 0), argument(p_args, 1)
    num_rows, rows_per_item, width = argument(p_args, 2), argument(p_args, 3), argument(p_args, 4)
    p_x, p_out, size = argument(p_args, 5), argument(p_args, 6), argument(p_args, 7)
    first, seed = argument(p_args, 8), argument(p_args, 9)
    threshold, scale = argument(p_args, 10), argument(p_args, 11)
    # Ids of the rows; 0 where they follow the first one.
    p_ids = argument(p_args, 12)
    while True:
        item = claim(p_counter)
        if item >= num_items:
            break
        for row in range(item * rows_per_item, min(num_rows, (item + 1) * rows_per_item)):
            row_id = _id_at(p_ids, row) if p_ids else first + row
            key, o_row = row_key(row_id, seed), row * width * size
            for at in range(0, width, LANES):
                p_from, p_to, count = p_x + o_row + at * size, p_out + o_row + at * size, width - at
                lane_key = key + at * _FEATURE_STEP
                if size == 4:
                    if count >= LANES:
                        _drop_32(p_from, p_to, count, lane_key, threshold, scale)
                    else:
                        _drop_tail_32(p_from, p_to, count, lane_key, threshold, scale)
                elif count >= LANES:
                    _drop_64(p_from, p_to, count, lane_key, threshold, scale)
                else:
                    _drop_tail_64(p_from, p_to, count, lane_key, threshold, scale)


def drop_rows(x: Tensor, out: Tensor, width: int, mask: Mask) -> None:
    """Write ``x`` to ``out`` without the values that ``mask`` (p below 1) drops; a row has ``width`` values.

    Both are float32 or float64, contiguous. ``out`` may be ``x`` itself.
    """
    rows_per_item = max(1, VALUES_PER_ITEM // max(1, width))
    num_items = -(-len(x) // rows_per_item)
    scale = np.float64(random.scale(mask.p)).view(np.int64)
    arguments = [num_items, len(x), rows_per_item, width, x.data_ptr(), out.data_ptr(), x.element_size()]
    ids = None if mask.ids is None else mask.ids_of(x).contiguous()
    arguments += [
        mask.first,
        int(mask.seed),
        random.threshold(mask.p),
        int(scale),
        0 if ids is None else ids.data_ptr(),
    ]
    launch(int(_drop_rows.address or 0), arguments, num_items=num_items)
