"""Block: a Numba type for a fixed number of features held in vector registers.

A block has ``lanes`` values in chunks of ``width`` (64 bytes of the widest type of a kernel); the last chunk may
be partly used, and what its unused lanes hold means nothing. One lane is a plain scalar. Every operation is
unrolled over the chunks, so a generated kernel has one line per operation and LLVM sees only vector instructions.
Blocks never live in memory but through ``load`` and ``store``, which take an address and mask the tail.

Kinds of lanes: f4 (also loaded from f2 and bf), f8, i4, i8, b1 (masks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

I1, I16, I32, I64 = ir.IntType(1), ir.IntType(16), ir.IntType(32), ir.IntType(64)
I8_POINTER = ir.IntType(8).as_pointer()
KINDS = {"f4": ir.FloatType(), "f8": ir.DoubleType(), "i4": I32, "i8": I64, "b1": I1}
# How the kinds that are only stored lie in memory.
STORED = {"f2": ir.HalfType(), "bf": I16}
SIZES = {"f4": 4, "f8": 8, "i4": 4, "i8": 8, "f2": 2, "bf": 2}
# Products may be fused into sums; nothing else may be rearranged, and NaN and infinity mean what they say.
FLAGS = ("contract",)


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
    """LLVM's suffix of an overloaded intrinsic: f32, v16f32, ..."""
    scalar = form.element if isinstance(form, ir.VectorType) else form
    letter = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(scalar) or f"i{scalar.width}"
    return f"v{form.count}{letter}" if isinstance(form, ir.VectorType) else letter


def typed_pointer(builder: ir.IRBuilder, address: ir.Value, form: ir.Type) -> ir.Value:
    """An integer address as a pointer."""
    return builder.inttoptr(address, form.as_pointer())


def _tail_mask(block: Block, chunk: int) -> ir.Constant:
    used = block.used(chunk)
    return ir.Constant(ir.VectorType(I1, block.width), [1] * used + [0] * (block.width - used))


def _load_chunk(builder: ir.IRBuilder, address: ir.Value, block: Block, chunk: int, stored: ir.Type) -> ir.Value:
    align = max(1, (stored.width if isinstance(stored, ir.IntType) else SIZES_OF_FLOATS[stored] * 8) // 8)
    if block.lanes == 1:
        return builder.load(typed_pointer(builder, address, stored), align=align)
    vector = ir.VectorType(stored, block.width)
    pointer = typed_pointer(builder, address, vector)
    if block.used(chunk) == block.width:
        return builder.load(pointer, align=align)
    letter = {ir.HalfType(): f"v{block.width}f16"}.get(stored) or suffix(vector)
    args = [pointer, ir.Constant(I32, align), _tail_mask(block, chunk), constant(vector, 0)]
    return call_intrinsic(builder, f"llvm.masked.load.{letter}.p0", vector, args)


SIZES_OF_FLOATS = {ir.HalfType(): 2, ir.FloatType(): 4, ir.DoubleType(): 8}


def loader(stored: str, lanes: int, width: int) -> Callable[..., Any]:
    """``load(address, index)``: the lanes from ``index`` on (in elements) of an array of the stored kind."""
    block = Block("f4" if stored in STORED else stored, lanes, width)
    form = STORED.get(stored) or KINDS[stored]

    @intrinsic
    def load(_typing: Any, address: Any, index: Any) -> Any:
        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            first = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, SIZES[stored])))
            chunks = []
            for chunk in range(block.num_chunks):
                at = builder.add(first, ir.Constant(I64, chunk * width * SIZES[stored]))
                chunks.append(_widen(builder, _load_chunk(builder, at, block, chunk, form), stored, block))
            return pack(builder, block, chunks)

        return block(types.int64, types.int64), generate

    return load


def _widen(builder: ir.IRBuilder, value: ir.Value, stored: str, block: Block) -> ir.Value:
    if stored == "f2":
        return builder.fpext(value, block.chunk)
    if stored == "bf":
        # bfloat16 is the upper half of a float32.
        wide = I32 if block.lanes == 1 else ir.VectorType(I32, block.width)
        return builder.bitcast(builder.shl(builder.zext(value, wide), constant(wide, 16)), block.chunk)
    return value


@intrinsic
def store(_typing: Any, address: Any, index: Any, value: Any) -> Any:
    """Write a block of f4, f8, i4 or i8 to ``index`` (in elements) of an array of the same kind."""
    if not isinstance(value, Block):
        return None
    size = SIZES[value.kind]

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        first = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, size)))
        for index, chunk in enumerate(chunks_of(builder, value, args[2])):
            at = builder.add(first, ir.Constant(I64, index * value.width * size))
            pointer = typed_pointer(builder, at, value.chunk)
            if value.lanes == 1 or value.used(index) == value.width:
                builder.store(chunk, pointer, align=size)
                continue
            args_of_store = [chunk, pointer, ir.Constant(I32, size), _tail_mask(value, index)]
            call_intrinsic(builder, f"llvm.masked.store.{suffix(value.chunk)}.p0", ir.VoidType(), args_of_store)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, value), generate


def filler(kind: str, lanes: int, width: int, number: float) -> Callable[..., Any]:
    """``fill()``: a block with the number in every lane."""
    block = Block(kind, lanes, width)

    @intrinsic
    def fill(_typing: Any) -> Any:
        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, _args: Any) -> ir.Value:
            value = number if kind.startswith("f") else int(number)
            return pack(builder, block, [constant(block.chunk, value)] * block.num_chunks)

        return block(), generate

    return fill


@intrinsic
def as_scalar(_typing: Any, number: Any) -> Any:
    """A Python integer as a block of one lane, i8."""
    block = Block("i8", 1, 1)
    return block(types.int64), lambda _context, _builder, _signature, args: args[0]
