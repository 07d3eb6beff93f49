"""Arithmetic on blocks, lane by lane. An operand of one lane, or a Python integer, is spread over all lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from sagann.kernels.edge.cpu import maths
from sagann.kernels.edge.cpu.block import (
    FLAGS,
    I1,
    KINDS,
    Block,
    call_intrinsic,
    chunks_of,
    constant,
    emitted,
    pack,
    splat,
    suffix,
)
from sagann.kernels.edge.cpu.maths import Chunk, is_float, scalar_of
from sagann.kernels.edge.function import COMPARISONS

Build = Callable[..., Chunk]


def _arithmetic(of_floats: str, of_integers: str) -> Build:
    def build(builder: ir.IRBuilder, a: Chunk, b: Chunk) -> Chunk:
        if is_float(a):
            return getattr(builder, of_floats)(a, b, flags=FLAGS)
        return getattr(builder, of_integers)(a, b)

    return build


def _compare(operator: str) -> Build:
    def build(builder: ir.IRBuilder, a: Chunk, b: Chunk) -> Chunk:
        if is_float(a):
            # NaN is unequal to everything and in no order.
            compare = builder.fcmp_unordered if operator == "!=" else builder.fcmp_ordered
            return compare(operator, a, b)
        # True is 1, not -1.
        return (builder.icmp_unsigned if scalar_of(a) == I1 else builder.icmp_signed)(operator, a, b)

    return build


def _extremum(operator: str) -> Build:
    def build(builder: ir.IRBuilder, a: Chunk, b: Chunk) -> Chunk:
        # a where a is beyond b or NaN, so that NaN in either operand stays, as in PyTorch.
        wins = builder.or_(builder.fcmp_ordered(operator, a, b), builder.fcmp_unordered("uno", a, a))
        return builder.select(wins, a, b)

    return build


BINARY: dict[str, Build] = {
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _arithmetic("fmul", "mul"),
    "div": lambda builder, a, b: builder.fdiv(a, b),
    "pow": lambda builder, a, b: maths.per_lane(builder, "pow", a, b),
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


def spread(builder: ir.IRBuilder, given: Any, value: ir.Value, target: Block) -> list[Chunk]:
    """The chunks of an operand, as many as ``target`` has."""
    if not isinstance(given, Block):
        # An int64, among blocks of integers.
        value = value if target.kind == "i8" else builder.trunc(value, KINDS[target.kind])
        given = Block(target.kind, 1, 1)
    if given.lanes == target.lanes:
        return chunks_of(builder, given, value)
    return [splat(builder, value, target.width)] * target.num_chunks


def widest(*operands: Any) -> Block:
    """The block with the most lanes among the operands."""
    return max((block for block in operands if isinstance(block, Block)), key=lambda block: block.lanes)


def _operation(name: str, num_operands: int) -> Any:
    build = BINARY.get(name) or maths.UNARY[name]

    def gives(*operands: Any) -> Block:
        return widest(*operands).of("b1") if name in COMPARISONS else widest(*operands)

    @emitted(gives, *[None] * num_operands)
    def operation(builder: ir.IRBuilder, signature: Any, *values: ir.Value) -> ir.Value:
        target = widest(*signature.args)
        operands = zip(signature.args, values, strict=True)
        lanes = zip(*(spread(builder, given, value, target) for given, value in operands), strict=True)
        return pack(builder, signature.return_type, [build(builder, *chunks) for chunks in lanes])

    return operation


OPERATIONS = {name: _operation(name, 2) for name in BINARY} | {name: _operation(name, 1) for name in maths.UNARY}
"Functions of blocks by the name of the op, for generated kernels."


def _chosen(mask: Any, a: Any, b: Any) -> Block:
    kind = next(operand.kind for operand in (a, b) if isinstance(operand, Block))
    return widest(mask, a, b).of(kind)


@emitted(_chosen, None, None, None)
def where(builder: ir.IRBuilder, signature: Any, *values: ir.Value) -> ir.Value:
    """a where the mask holds, else b."""
    target = signature.return_type
    targets = (target.of("b1"), target, target)
    operands = zip(signature.args, values, targets, strict=True)
    lanes = zip(*(spread(builder, given, value, to) for given, value, to in operands), strict=True)
    return pack(builder, target, [builder.select(*chunks) for chunks in lanes])


@emitted(types.boolean, None)
def any_lane(builder: ir.IRBuilder, signature: Any, value: ir.Value) -> ir.Value:
    """Whether the mask holds in a lane that is in use."""
    (mask,) = signature.args
    chunks = chunks_of(builder, mask, value)
    if mask.lanes == 1:
        return chunks[0]
    found = ir.Constant(I1, 0)
    for index, chunk in enumerate(chunks):
        used = mask.used(index)
        in_use = builder.and_(chunk, ir.Constant(chunk.type, [1] * used + [0] * (mask.width - used)))
        reduced = call_intrinsic(builder, f"llvm.vector.reduce.or.{suffix(chunk.type)}", I1, [in_use])
        found = builder.or_(found, reduced)
    return found


def caster(kind: str) -> Callable[..., Any]:
    """``cast(a)``: the same lanes in another kind; masks become 0 and 1, numbers become "is not 0"."""

    @emitted(lambda a: a.of(kind), None)
    def cast(builder: ir.IRBuilder, signature: Any, value: ir.Value) -> ir.Value:
        (a,), target = signature.args, signature.return_type
        chunks = [_convert(builder, chunk, a.kind, target) for chunk in chunks_of(builder, a, value)]
        return pack(builder, target, chunks)

    return cast


def _convert(builder: ir.IRBuilder, chunk: Chunk, kind: str, target: Block) -> Chunk:
    form = target.chunk
    if kind == target.kind:
        return chunk
    if target.kind == "b1":
        compare = builder.fcmp_unordered if is_float(chunk) else builder.icmp_signed
        return compare("!=", chunk, constant(chunk.type, 0))
    if kind == "b1":
        return builder.uitofp(chunk, form) if target.kind.startswith("f") else builder.zext(chunk, form)
    if target.kind.startswith("f"):
        if not is_float(chunk):
            return builder.sitofp(chunk, form)
        return builder.fpext(chunk, form) if target.kind == "f8" else builder.fptrunc(chunk, form)
    if is_float(chunk):
        return builder.fptosi(chunk, form)
    return builder.sext(chunk, form) if target.kind == "i8" else builder.trunc(chunk, form)
