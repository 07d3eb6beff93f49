"""Arithmetic on blocks, lane by lane. One lane stands for all: scalars, and Python numbers, are spread as needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sagann.kernels.edge.cpu import maths
from sagann.kernels.edge.cpu.block import (
    FLAGS,
    I1,
    KINDS,
    Block,
    call_intrinsic,
    chunks_of,
    constant,
    pack,
    splat,
    suffix,
)

Chunk: TypeAlias = Any
"An LLVM value: a vector or a scalar."
Build = Callable[..., Chunk]


def _is_float(chunk: Chunk) -> bool:
    form = chunk.type.element if isinstance(chunk.type, ir.VectorType) else chunk.type
    return isinstance(form, (ir.FloatType, ir.DoubleType))


def _arithmetic(of_floats: str, of_integers: str) -> Build:
    def build(builder: ir.IRBuilder, a: Chunk, b: Chunk) -> Chunk:
        if _is_float(a):
            return getattr(builder, of_floats)(a, b, flags=FLAGS)
        return getattr(builder, of_integers)(a, b)

    return build


def _compare(operator: str) -> Build:
    def build(builder: ir.IRBuilder, a: Chunk, b: Chunk) -> Chunk:
        if _is_float(a):
            # NaN is unequal to everything and in no order.
            return (
                builder.fcmp_unordered(operator, a, b) if operator == "!=" else builder.fcmp_ordered(operator, a, b)
            )
        # True is 1, not -1.
        is_mask = getattr(a.type, "element", a.type) == I1
        return (builder.icmp_unsigned if is_mask else builder.icmp_signed)(operator, a, b)

    return build


def _extremum(operator: str) -> Build:
    def build(builder: ir.IRBuilder, a: Chunk, b: Chunk) -> Chunk:
        # a where it is beyond b or NaN: NaN in either operand is kept, as in PyTorch.
        wins = builder.or_(builder.fcmp_ordered(operator, a, b), builder.fcmp_unordered("uno", a, a))
        return builder.select(wins, a, b)

    return build


BINARY: dict[str, Build] = {
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _arithmetic("fmul", "mul"),
    "div": lambda builder, a, b: builder.fdiv(a, b),
    "pow": maths.power,
    "maximum": _extremum(">"),
    "minimum": _extremum("<"),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "eq": _compare("=="),
    "ne": _compare("!="),
    "and": lambda builder, a, b: builder.and_(a, b),
    "or": lambda builder, a, b: builder.or_(a, b),
}
COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}


def lanes_of(number: Any, like: Block | None = None) -> Block:
    """The block that a Numba type is, a Python number being one lane of the other operand's kind."""
    if isinstance(number, Block):
        return number
    kind = like.kind if like is not None else "f8"
    return Block(kind, 1, 1)


def spread(builder: ir.IRBuilder, given: Any, value: ir.Value, target: Block) -> list[Chunk]:
    """The chunks of an operand, as many as ``target`` has."""
    if not isinstance(given, Block):
        value = _number(builder, given, value, target.kind)
        given = Block(target.kind, 1, 1)
    if given.lanes == target.lanes:
        return chunks_of(builder, given, value)
    return [splat(builder, value, target.width)] * target.num_chunks


def _number(builder: ir.IRBuilder, given: Any, value: ir.Value, kind: str) -> ir.Value:
    form = KINDS[kind]
    if kind == "b1":
        return builder.icmp_signed("!=", value, ir.Constant(value.type, 0))
    if kind.startswith("f"):
        if isinstance(given, types.Integer):
            return builder.sitofp(value, form)
        return value if value.type == form else builder.fptrunc(value, form)
    return value if value.type == form else builder.trunc(value, form)


def widest(blocks: list[Any]) -> Block:
    """The block with the most lanes among the operands."""
    return max((block for block in blocks if isinstance(block, Block)), key=lambda block: block.lanes)


def _binary(name: str) -> Any:
    build = BINARY[name]

    @intrinsic
    def operation(_typing: Any, a: Any, b: Any) -> Any:
        target = widest([a, b])
        result = target.of("b1") if name in COMPARISONS else target

        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            pairs = zip(spread(builder, a, args[0], target), spread(builder, b, args[1], target), strict=True)
            return pack(builder, result, [build(builder, x, y) for x, y in pairs])

        return result(a, b), generate

    return operation


def _unary(name: str) -> Any:
    build = maths.UNARY[name]

    @intrinsic
    def operation(_typing: Any, a: Any) -> Any:
        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            return pack(builder, a, [build(builder, chunk) for chunk in chunks_of(builder, a, args[0])])

        return a(a), generate

    return operation


OPERATIONS = {name: _binary(name) for name in BINARY} | {name: _unary(name) for name in maths.UNARY}
"Intrinsics by the name of the op, for generated kernels."


@intrinsic
def where(_typing: Any, mask: Any, a: Any, b: Any) -> Any:
    """a where the mask holds, else b."""
    kind = next(operand.kind for operand in (a, b) if isinstance(operand, Block))
    target = widest([mask, a, b]).of(kind)

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        masks = spread(builder, mask, args[0], target.of("b1"))
        ones, others = spread(builder, a, args[1], target), spread(builder, b, args[2], target)
        chosen = [builder.select(m, x, y) for m, x, y in zip(masks, ones, others, strict=True)]
        return pack(builder, target, chosen)

    return target(mask, a, b), generate


@intrinsic
def any_lane(_typing: Any, mask: Any) -> Any:
    """Whether the mask holds in a lane that is in use."""

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        chunks = chunks_of(builder, mask, args[0])
        if mask.lanes == 1:
            return chunks[0]
        found = ir.Constant(I1, 0)
        for index, chunk in enumerate(chunks):
            used = mask.used(index)
            in_use = ir.Constant(chunk.type, [1] * used + [0] * (mask.width - used))
            reduced = call_intrinsic(
                builder, f"llvm.vector.reduce.or.{suffix(chunk.type)}", I1, [builder.and_(chunk, in_use)]
            )
            found = builder.or_(found, reduced)
        return found

    return types.boolean(mask), generate


def caster(kind: str) -> Callable[..., Any]:
    """``cast(a)``: the same lanes in another kind; masks become 0 and 1, numbers become "is not 0"."""

    @intrinsic
    def cast(_typing: Any, a: Any) -> Any:
        target = a.of(kind)

        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
            chunks = [_convert(builder, chunk, a.kind, target) for chunk in chunks_of(builder, a, args[0])]
            return pack(builder, target, chunks)

        return target(a), generate

    return cast


def _convert(builder: ir.IRBuilder, chunk: Chunk, kind: str, target: Block) -> Chunk:
    form = target.chunk
    if kind == target.kind:
        return chunk
    if target.kind == "b1":
        zero = constant(chunk.type, 0)
        return (
            builder.fcmp_unordered("!=", chunk, zero)
            if _is_float(chunk)
            else builder.icmp_signed("!=", chunk, zero)
        )
    if kind == "b1":
        return builder.uitofp(chunk, form) if target.kind.startswith("f") else builder.zext(chunk, form)
    if target.kind.startswith("f"):
        if not _is_float(chunk):
            return builder.sitofp(chunk, form)
        return builder.fpext(chunk, form) if target.kind == "f8" else builder.fptrunc(chunk, form)
    if _is_float(chunk):
        return builder.fptosi(chunk, form)
    return builder.sext(chunk, form) if target.kind == "i8" else builder.trunc(chunk, form)
