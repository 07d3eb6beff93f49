"""Dropout of rows on the CPU: each value is loaded, multiplied by 0 or the scale, and stored, 16 lanes at a time.

Legend: p_ addresses, o_ byte offsets, key what the draws of a row have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from sagann.kernels.edge import random
from sagann.kernels.edge.cpu import access
from sagann.kernels.edge.cpu.access import mix
from sagann.kernels.edge.cpu.block import I32, call_intrinsic, constant, splat
from sagann.kernels.edge.cpu.launch import launch
from sagann.machine_code import compiled_callback

if TYPE_CHECKING:
    from sagann.kernels.row_dropout import Mask

LANES = 16
VALUES_PER_ITEM = 1 << 14
"Values of a work item: enough that claiming it costs nothing, few enough for every thread to get some."
_FEATURE_STEP = random.FEATURE_STEP
# Typed by Numba for whoever compiles with them, not for whoever calls them from Python.
argument: Any = access.argument
claim: Any = access.claim
row_key: Any = access.row_key


def _dropper(element: ir.Type, size: int, *, is_tail: bool) -> Callable[..., None]:
    """``drop(p_x, p_out, count, key, threshold, scale)``: 16 values, or the first ``count`` where it is a tail."""
    vector, counters = ir.VectorType(element, LANES), ir.VectorType(I32, LANES)
    letter = f"v{LANES}f{8 * size}"
    steps = ir.Constant(counters, [lane * _FEATURE_STEP & random.MASK for lane in range(LANES)])

    def factors(builder: ir.IRBuilder, key: ir.Value, threshold: ir.Value, scale: ir.Value) -> ir.Value:
        counter = builder.add(splat(builder, builder.trunc(key, I32), LANES), steps)
        draws = builder.lshr(mix(builder, counter), constant(counters, 32 - random.BITS))
        kept = builder.icmp_unsigned(">=", draws, splat(builder, builder.trunc(threshold, I32), LANES))
        number = builder.bitcast(scale, ir.DoubleType())
        number = number if size == 8 else builder.fptrunc(number, element)
        return builder.select(kept, splat(builder, number, LANES), constant(vector, 0.0))

    @intrinsic
    def drop(
        _typing: Any, p_x: Any, p_out: Any, count: Any, key: Any, threshold: Any, scale: Any
    ) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            pointers = [builder.inttoptr(address, vector.as_pointer()) for address in args[:2]]
            factor = factors(builder, *args[3:])
            if not is_tail:
                product = builder.fmul(builder.load(pointers[0], align=size), factor)
                builder.store(product, pointers[1], align=size)
                return context.get_dummy_value()
            lanes = ir.Constant(counters, list(range(LANES)))
            within = builder.icmp_signed("<", lanes, splat(builder, builder.trunc(args[2], I32), LANES))
            align = ir.Constant(I32, size)
            load = [pointers[0], align, within, constant(vector, 0.0)]
            product = builder.fmul(call_intrinsic(builder, f"llvm.masked.load.{letter}.p0", vector, load), factor)
            store = [product, pointers[1], align, within]
            call_intrinsic(builder, f"llvm.masked.store.{letter}.p0", ir.VoidType(), store)
            return context.get_dummy_value()

        numbers = [types.int64] * 6
        return types.none(*numbers), generate

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
    while True:
        item = claim(p_counter)
        if item >= num_items:
            break
        for row in range(item * rows_per_item, min(num_rows, (item + 1) * rows_per_item)):
            key, o_row = row_key(first + row, seed), row * width * size
            for at in range(0, width, LANES):
                p_from, p_to, lane_key = (
                    p_x + o_row + at * size,
                    p_out + o_row + at * size,
                    key + at * _FEATURE_STEP,
                )
                count = width - at
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
    """Write ``x`` to ``out`` with the values dropped that ``mask`` drops.

    Args:
        x: float32 or float64, contiguous [rows, ...].
        out: the same form, contiguous; may be ``x`` itself.
        width: values of a row.
        mask: with p below 1.
    """
    rows_per_item = max(1, VALUES_PER_ITEM // max(1, width))
    num_items = -(-len(x) // rows_per_item)
    scale = np.float64(random.scale(mask.p)).view(np.int64)
    arguments = [num_items, len(x), rows_per_item, width, x.data_ptr(), out.data_ptr(), x.element_size()]
    arguments += [mask.first, mask.seed, random.threshold(mask.p), int(scale)]
    launch(int(_drop_rows.address or 0), arguments, num_items=num_items)
