"""Memory accesses of a kernel besides blocks: arguments, ids, work items and prefetches; and random draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

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
    emitted,
    pack,
    splat,
)

CACHE_LINE_BYTES = 64


@emitted(types.int64, None, types.int64)
def argument(builder: ir.IRBuilder, _signature: Any, p_args: ir.Value, position: ir.Value) -> ir.Value:
    """The int64 at ``position`` of the argument array."""
    array = builder.bitcast(p_args, I64.as_pointer())
    return builder.load(builder.gep(array, [position]))


def indexer(kind: str) -> Callable[..., Any]:
    """``index(address, position)``: an id of an i2, i4 or i8 array, as int64."""
    form = {"i2": I16, "i4": I32, "i8": I64}[kind]

    @emitted(types.int64, types.int64, types.int64)
    def index(builder: ir.IRBuilder, _signature: Any, address: ir.Value, position: ir.Value) -> ir.Value:
        array = builder.inttoptr(address, form.as_pointer())
        value = builder.load(builder.gep(array, [position]))
        return value if kind == "i8" else builder.sext(value, I64)

    return index


@emitted(types.int64, types.int64, types.int64)
def smaller(builder: ir.IRBuilder, _signature: Any, one: ir.Value, other: ir.Value) -> ir.Value:
    """The smaller one of two numbers. Numba's ``min`` of integers is a function of its own, which takes longer to compile."""
    return builder.select(builder.icmp_signed("<", one, other), one, other)


@emitted(types.int64, types.int64)
def claim(builder: ir.IRBuilder, _signature: Any, address: ir.Value) -> ir.Value:
    """Take the next work item: add 1 to a counter that all threads share, and return its earlier value."""
    counter = builder.inttoptr(address, I64.as_pointer())
    return builder.atomic_rmw("add", counter, ir.Constant(I64, 1), "monotonic")


def prefetcher(kind: str, lanes: int) -> Callable[..., Any]:
    """``prefetch(address, index)``: prefetch the cache lines of ``lanes`` elements from ``index`` on."""
    size = SIZES[kind]
    # The last byte's line as well: rows begin anywhere in a line.
    offsets = [*range(0, lanes * size, CACHE_LINE_BYTES), lanes * size - 1]

    @emitted(types.none, types.int64, types.int64)
    def prefetch(builder: ir.IRBuilder, _signature: Any, address: ir.Value, index: ir.Value) -> None:
        first = builder.add(address, builder.mul(index, ir.Constant(I64, size)))
        for offset in offsets:
            pointer = builder.inttoptr(builder.add(first, ir.Constant(I64, offset)), I8_POINTER)
            # A read, into all levels of the cache, of data.
            flags = [ir.Constant(I32, flag) for flag in (0, 3, 1)]
            call_intrinsic(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *flags])

    return prefetch


def drawer(kind: str, lanes: int, width: int, p: float, salt: int) -> Callable[..., Any]:
    """``draw(edge_id, seed, first)``: features ``first``... of :func:`sagann.kernels.edge.random.random_rows`."""
    block = Block(kind, lanes, width)

    @emitted(block, types.int64, types.int64, types.int64)
    def draw(
        builder: ir.IRBuilder, _signature: Any, edge_id: ir.Value, seed: ir.Value, first: ir.Value
    ) -> ir.Value:
        salted = builder.add(builder.trunc(seed, I32), ir.Constant(I32, salt * random.SALT_STEP & random.MASK))
        key = _key(builder, edge_id, salted)
        key = builder.add(key, builder.mul(builder.trunc(first, I32), ir.Constant(I32, random.FEATURE_STEP)))
        chunks = []
        for chunk in range(block.num_chunks):
            lanes_drawn = draws(builder, key, 1 if block.lanes == 1 else width, chunk * width)
            kept = builder.icmp_unsigned(">=", lanes_drawn, constant(lanes_drawn.type, random.threshold(p)))
            factors = [constant(block.chunk, factor) for factor in (random.scale(p), 0.0)]
            chunks.append(builder.select(kept, *factors))
        return pack(builder, block, chunks)

    return draw


@emitted(types.int64, types.int64, types.int64)
def row_key(builder: ir.IRBuilder, _signature: Any, row: ir.Value, seed: ir.Value) -> ir.Value:
    """The key that all draws of a row share, without a salt: the low 32 bits of an int64."""
    return builder.zext(_key(builder, row, builder.trunc(seed, I32)), I64)


def _key(builder: ir.IRBuilder, row: ir.Value, salted: ir.Value) -> ir.Value:
    low, high = builder.trunc(row, I32), builder.trunc(builder.lshr(row, ir.Constant(I64, 32)), I32)
    counter = builder.add(
        builder.mul(low, ir.Constant(I32, random.EDGE_STEP)),
        builder.mul(high, ir.Constant(I32, random.FEATURE_STEP)),
    )
    return _mixed(builder, builder.add(counter, salted))


def draws(builder: ir.IRBuilder, key: ir.Value, width: int, first: int = 0) -> ir.Value:
    """Draws of ``width`` features from ``first`` on, by the row's key, i32: a scalar for one feature, else a vector."""
    steps = [(first + lane) * random.FEATURE_STEP & random.MASK for lane in range(width)]
    if width > 1:
        key = builder.add(splat(builder, key, width), ir.Constant(ir.VectorType(I32, width), steps))
    return builder.lshr(_mixed(builder, key), constant(key.type, 32 - random.BITS))


def _mixed(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """:func:`sagann.kernels.edge.random.mix` of 32-bit lanes."""
    form = value.type
    value = builder.xor(value, builder.lshr(value, constant(form, 16)))
    value = builder.mul(value, constant(form, random.FIRST_FACTOR))
    value = builder.xor(value, builder.lshr(value, constant(form, 13)))
    value = builder.mul(value, constant(form, random.SECOND_FACTOR))
    return builder.xor(value, builder.lshr(value, constant(form, 16)))
