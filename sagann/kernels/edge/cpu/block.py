"""Primitives of CPU kernels: blocks of features in vector registers, memory accesses, and random draws.

:class:`Block` is a Numba type for a fixed number of features: ``lanes`` values in chunks of ``width`` (64 bytes of the widest type of a
kernel). The last chunk may be partly used; its unused lanes hold arbitrary values. A block of one lane is a plain scalar. Every operation
is unrolled over the chunks, so a generated kernel has one line per operation and LLVM sees only vector instructions. Only ``load`` and
``store`` move blocks from and to memory. Both take an address and mask the unused lanes. Arguments and ids are read as int64.

Kinds of lanes: f4 (also loaded from f2 and bf), f8, i4, i8, b1 (masks).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from sagann.kernels.edge import random

I1, I16, I32, I64 = ir.IntType(1), ir.IntType(16), ir.IntType(32), ir.IntType(64)
I8_POINTER = ir.IntType(8).as_pointer()
KINDS = {"f4": ir.FloatType(), "f8": ir.DoubleType(), "i4": I32, "i8": I64, "b1": I1}
# Kinds that exist in memory only.
STORED = {"f2": ir.HalfType(), "bf": I16}
SIZES = {"f4": 4, "f8": 8, "i4": 4, "i8": 8, "f2": 2, "bf": 2}
CACHE_LINE_BYTES = 64
# Products may be fused into sums; nothing else may be rearranged, and NaN and infinity mean what they say.
FLAGS = ("contract",)


def emitted(gives: Any, *takes: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a builder of LLVM instructions: it becomes a function that compiled code calls.

    The builder is ``build(builder, signature, *values)``. It returns an LLVM value, or None for a function without result.

    Args:
        gives: Numba type of the result, or a function from the types of the arguments to that type.
        takes: Numba types of the arguments; None for any type.
    """
    names = [f"argument_{position}" for position in range(len(takes))]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("typing", *names)]

    def decorated(build: Callable[..., Any]) -> Any:
        def definition(_typing: Any, *given: Any) -> Any:
            taken = [own if stated is None else stated for own, stated in zip(given, takes, strict=True)]
            result = gives if isinstance(gives, types.Type) else gives(*taken)

            def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
                value = build(builder, signature, *args)
                return context.get_dummy_value() if value is None else value

            return result(*taken), generate

        # Numba reads names and number of the parameters.
        definition.__name__, definition.__doc__ = build.__name__, build.__doc__
        definition.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return intrinsic(definition)

    return decorated


class Block(types.Type):
    """``lanes`` values of a kind, in chunks of ``width``."""

    def __init__(self, kind: str, lanes: int, width: int) -> None:
        self.kind, self.lanes, self.width = kind, lanes, width
        super().__init__(name=f"Block({kind}, {lanes}, {width})")

    @property
    def num_chunks(self) -> int:
        """Number of vector registers."""
        return -(-self.lanes // self.width)

    @property
    def chunk(self) -> ir.Type:
        """LLVM's type of a chunk: a vector, or the scalar itself for one lane."""
        return KINDS[self.kind] if self.lanes == 1 else ir.VectorType(KINDS[self.kind], self.width)

    def used(self, chunk: int) -> int:
        """Number of lanes in use in a chunk."""
        return min(self.width, self.lanes - chunk * self.width)

    def of(self, kind: str) -> Block:
        """The same lanes in another kind."""
        return Block(kind, self.lanes, self.width)


@register_model(Block)
class BlockModel(models.PrimitiveModel):
    """A block is a struct of its chunks; LLVM splits it into registers."""

    def __init__(self, manager: Any, block: Block) -> None:
        form = block.chunk if block.lanes == 1 else ir.LiteralStructType([block.chunk] * block.num_chunks)
        super().__init__(manager, block, form)  # type: ignore[no-untyped-call]


def chunks_of(builder: ir.IRBuilder, block: Block, value: ir.Value) -> list[ir.Value]:
    """The chunks of a block's LLVM value."""
    if block.lanes == 1:
        return [value]
    return [builder.extract_value(value, index) for index in range(block.num_chunks)]


def pack(builder: ir.IRBuilder, block: Block, chunks: Sequence[ir.Value]) -> ir.Value:
    """A block's LLVM value from its chunks."""
    if block.lanes == 1:
        return chunks[0]
    value = ir.Constant(ir.LiteralStructType([block.chunk] * block.num_chunks), ir.Undefined)
    for index, chunk in enumerate(chunks):
        value = builder.insert_value(value, chunk, index)
    return value


def splat(builder: ir.IRBuilder, scalar: ir.Value, width: int) -> ir.Value:
    """A vector with the scalar in every lane."""
    if isinstance(scalar, ir.Constant):
        return ir.Constant(ir.VectorType(scalar.type, width), [scalar.constant] * width)
    vector = ir.VectorType(scalar.type, width)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(I32, width), [0] * width))


def constant(form: ir.Type, value: float) -> ir.Constant:
    """A constant of a scalar or vector type."""
    if isinstance(form, ir.VectorType):
        return ir.Constant(form, [value] * form.count)
    return ir.Constant(form, value)


def call_intrinsic(builder: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
    """Call LLVM's intrinsic or a C function of that exact name."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [arg.type for arg in args]), name)
    return builder.call(function, args)


def suffix(form: ir.Type) -> str:
    """LLVM's suffix of an overloaded intrinsic, as in f32 or v16f32."""
    scalar = form.element if isinstance(form, ir.VectorType) else form
    letter = {ir.HalfType(): "f16", ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(scalar) or f"i{scalar.width}"
    return f"v{form.count}{letter}" if isinstance(form, ir.VectorType) else letter


def masked_load(builder: ir.IRBuilder, pointer: ir.Value, mask: ir.Value, size: int) -> ir.Value:
    """Load a vector's lanes under a mask, else 0; a lane has ``size`` bytes."""
    form = pointer.type.pointee
    args = [pointer, ir.Constant(I32, size), mask, constant(form, 0)]
    return call_intrinsic(builder, f"llvm.masked.load.{suffix(form)}.p0", form, args)


def masked_store(builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value, mask: ir.Value, size: int) -> None:
    """Store a vector's lanes under a mask; a lane has ``size`` bytes."""
    args = [value, pointer, ir.Constant(I32, size), mask]
    call_intrinsic(builder, f"llvm.masked.store.{suffix(value.type)}.p0", ir.VoidType(), args)


def _places(builder: ir.IRBuilder, address: ir.Value, index: ir.Value, block: Block, size: int) -> list[ir.Value]:
    """Addresses of a block's chunks in an array from element ``index`` on."""
    first = builder.add(address, builder.mul(index, ir.Constant(I64, size)))
    return [builder.add(first, ir.Constant(I64, chunk * block.width * size)) for chunk in range(block.num_chunks)]


def _tail_mask(block: Block, chunk: int) -> ir.Constant | None:
    """The lanes in use of a chunk; None where all are."""
    used = block.used(chunk)
    if block.lanes == 1 or used == block.width:
        return None
    return ir.Constant(ir.VectorType(I1, block.width), [1] * used + [0] * (block.width - used))


def loader(stored: str, lanes: int, width: int) -> Callable[..., Any]:
    """``load(address, index)``: the lanes from ``index`` on (in elements) of an array of the stored kind."""
    block, size = Block("f4" if stored in STORED else stored, lanes, width), SIZES[stored]
    form = STORED.get(stored) or KINDS[stored]
    form = form if lanes == 1 else ir.VectorType(form, width)

    @emitted(block, types.int64, types.int64)
    def load(builder: ir.IRBuilder, _signature: Any, address: ir.Value, index: ir.Value) -> ir.Value:
        chunks = []
        for chunk, at in enumerate(_places(builder, address, index, block, size)):
            pointer, mask = builder.inttoptr(at, form.as_pointer()), _tail_mask(block, chunk)
            whole = mask is None
            value = builder.load(pointer, align=size) if whole else masked_load(builder, pointer, mask, size)
            chunks.append(_widen(builder, value, stored, block))
        return pack(builder, block, chunks)

    return load


def _widen(builder: ir.IRBuilder, value: ir.Value, stored: str, block: Block) -> ir.Value:
    if stored == "f2":
        return builder.fpext(value, block.chunk)
    if stored == "bf":
        # bfloat16 is the upper half of a float32.
        wide = I32 if block.lanes == 1 else ir.VectorType(I32, block.width)
        return builder.bitcast(builder.shl(builder.zext(value, wide), constant(wide, 16)), block.chunk)
    return value


@emitted(types.none, types.int64, types.int64, None)
def store(builder: ir.IRBuilder, signature: Any, address: ir.Value, index: ir.Value, value: ir.Value) -> None:
    """Write a block of f4, f8, i4 or i8 to ``index`` (in elements) of an array of the same kind."""
    block = signature.args[2]
    size = SIZES[block.kind]
    places = _places(builder, address, index, block, size)
    for number, (at, chunk) in enumerate(zip(places, chunks_of(builder, block, value), strict=True)):
        pointer, mask = builder.inttoptr(at, block.chunk.as_pointer()), _tail_mask(block, number)
        if mask is None:
            builder.store(chunk, pointer, align=size)
        else:
            masked_store(builder, chunk, pointer, mask, size)


def filler(kind: str, lanes: int, width: int, number: float) -> Callable[..., Any]:
    """``fill()``: a block with the number in every lane."""
    block = Block(kind, lanes, width)

    @emitted(block)
    def fill(builder: ir.IRBuilder, _signature: Any) -> ir.Value:
        value = number if kind.startswith("f") else int(number)
        return pack(builder, block, [constant(block.chunk, value)] * block.num_chunks)

    return fill


@emitted(Block("i8", 1, 1), types.int64)
def as_scalar(_builder: ir.IRBuilder, _signature: Any, number: ir.Value) -> ir.Value:
    """A Python integer as a block of one lane, i8."""
    return number


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
