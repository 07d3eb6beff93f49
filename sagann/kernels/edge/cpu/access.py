"""What a kernel needs of memory besides blocks: its arguments, ids, work items, prefetches, random draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sagann.kernels.edge import random
from sagann.kernels.edge.cpu.block import (
    I8_POINTER,
    I16,
    I32,
    I64,
    SIZES,
    Block,
    call_intrinsic,
    constant,
    pack,
    splat,
)

CACHE_LINE_BYTES = 64


@intrinsic
def argument(_typing: Any, p_args: Any, position: Any) -> Any:
    """The int64 at ``position`` of the argument array."""

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        array = builder.bitcast(args[0], I64.as_pointer())
        return builder.load(builder.gep(array, [args[1]]))

    return types.int64(p_args, types.int64), generate


def indexer(kind: str) -> Callable[..., Any]:
    """``index(address, position)``: an id of an i2, i4 or i8 array, as int64."""
    form = {"i2": I16, "i4": I32, "i8": I64}[kind]

    @intrinsic
    def index(_typing: Any, address: Any, position: Any) -> Any:
        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            array = builder.inttoptr(args[0], form.as_pointer())
            value = builder.load(builder.gep(array, [args[1]]))
            return value if kind == "i8" else builder.sext(value, I64)

        return types.int64(types.int64, types.int64), generate

    return index


@intrinsic
def claim(_typing: Any, address: Any) -> Any:
    """Take the next work item: add 1 to a counter that all threads share, return what it was."""

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        counter = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("add", counter, ir.Constant(I64, 1), "monotonic")

    return types.int64(types.int64), generate


def prefetcher(kind: str, lanes: int) -> Callable[..., Any]:
    """``prefetch(address, index)``: ask for the cache lines of ``lanes`` elements from ``index`` on."""
    size = SIZES[kind]
    # The last byte's line as well: rows begin anywhere in a line.
    offsets = [*range(0, lanes * size, CACHE_LINE_BYTES), lanes * size - 1]

    @intrinsic
    def prefetch(_typing: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            first = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, size)))
            for offset in offsets:
                pointer = builder.inttoptr(builder.add(first, ir.Constant(I64, offset)), I8_POINTER)
                # To read, keep in all caches, data.
                flags = [ir.Constant(I32, flag) for flag in (0, 3, 1)]
                call_intrinsic(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *flags])
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), generate

    return prefetch


def drawer(kind: str, lanes: int, width: int, p: float, salt: int) -> Callable[..., Any]:
    """``draw(edge_id, seed, first)``: features ``first``... of :func:`sagann.kernels.edge.random.random_rows`."""
    block = Block(kind, lanes, width)

    @intrinsic
    def draw(_typing: Any, edge_id: Any, seed: Any, first: Any) -> Any:
        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            salted = builder.add(
                builder.trunc(args[1], I32), ir.Constant(I32, salt * random.SALT_STEP & random.MASK)
            )
            edge = _key(builder, args[0], salted)
            step = builder.mul(builder.trunc(args[2], I32), ir.Constant(I32, random.FEATURE_STEP))
            edge = builder.add(edge, step)
            return pack(
                builder, block, [_draw(builder, block, edge, chunk, p) for chunk in range(block.num_chunks)]
            )

        return block(types.int64, types.int64, types.int64), generate

    return draw


@intrinsic
def row_key(_typing: Any, row: Any, seed: Any) -> Any:
    """What the draws of a row have in common, without a salt; an int64 whose low 32 bits count."""

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        return builder.zext(_key(builder, args[0], builder.trunc(args[1], I32)), I64)

    return types.int64(types.int64, types.int64), generate


def _key(builder: ir.IRBuilder, row: ir.Value, salted: ir.Value) -> ir.Value:
    low, high = builder.trunc(row, I32), builder.trunc(builder.lshr(row, ir.Constant(I64, 32)), I32)
    counter = builder.add(
        builder.mul(low, ir.Constant(I32, random.EDGE_STEP)),
        builder.mul(high, ir.Constant(I32, random.FEATURE_STEP)),
    )
    return mix(builder, builder.add(counter, salted))


def _draw(builder: ir.IRBuilder, block: Block, edge: ir.Value, chunk: int, p: float) -> ir.Value:
    steps = [(chunk * block.width + lane) * random.FEATURE_STEP & random.MASK for lane in range(block.width)]
    if block.lanes == 1:
        counter = edge
    else:
        counter = builder.add(
            splat(builder, edge, block.width), ir.Constant(ir.VectorType(I32, block.width), steps)
        )
    draws = builder.lshr(mix(builder, counter), constant(counter.type, 32 - random.BITS))
    kept = builder.icmp_unsigned(">=", draws, constant(counter.type, random.threshold(p)))
    return builder.select(kept, constant(block.chunk, random.scale(p)), constant(block.chunk, 0.0))


def mix(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """:func:`sagann.kernels.edge.random.mix` of 32-bit lanes."""
    form = value.type
    value = builder.xor(value, builder.lshr(value, constant(form, 16)))
    value = builder.mul(value, constant(form, random.FIRST_FACTOR))
    value = builder.xor(value, builder.lshr(value, constant(form, 13)))
    value = builder.mul(value, constant(form, random.SECOND_FACTOR))
    return builder.xor(value, builder.lshr(value, constant(form, 16)))
