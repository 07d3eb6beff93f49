"""Arithmetic on blocks, lane by lane. An operand of one lane, or a Python integer, is spread over all lanes.

An operation is LLVM instructions for one chunk, a vector or a scalar. exp, expm1, sigmoid and tanh are polynomials, because LLVM has no vector
form of them. Rare functions (log, erf, sin and others) call the C library lane by lane.

exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2. exp(r) - 1 is a Taylor series, of degree 6 in float32 and 13
in float64. Its remainder is below a unit in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types

from sagann.kernels.edge.cpu.block import (
    FLAGS,
    I1,
    I32,
    I64,
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
from sagann.kernels.edge.function import COMPARISONS

Chunk: TypeAlias = Any
"An LLVM value: a vector or a scalar."

# ln 2 as a sum. The upper part has trailing zeros, so its product with n is exact.
LN2_HIGH = {32: 0.693359375, 64: 6.93147180369123816490e-01}
LN2_LOW = {32: -2.12194440e-4, 64: 1.90821492927058770002e-10}
# Adding this number rounds a small float to an integer, and puts the integer into the lowest bits.
ROUNDING = {32: 1.5 * 2**23, 64: 1.5 * 2**52}
MANTISSA, BIAS = {32: 23, 64: 52}, {32: 127, 64: 1023}
LARGEST = {32: 89.0, 64: 710.0}
SMALLEST = {32: -104.0, 64: -746.0}
DEGREE = {32: 6, 64: 13}
# From -NORMAL to LARGEST_NORMAL 2^n is a normal number, so one multiplication by 2^n is enough.
NORMAL = {32: 87.0, 64: 708.0}
LARGEST_NORMAL = {32: 88.3, 64: 709.4}


def scalar_of(chunk: Chunk) -> ir.Type:
    """LLVM's type of a chunk's lanes."""
    return chunk.type.element if isinstance(chunk.type, ir.VectorType) else chunk.type


def is_float(chunk: Chunk) -> bool:
    """Whether a chunk's lanes are floating numbers."""
    return isinstance(scalar_of(chunk), (ir.FloatType, ir.DoubleType))


def _bits(chunk: Chunk) -> int:
    return 64 if scalar_of(chunk) == ir.DoubleType() else 32


def _integers(chunk: Chunk) -> ir.Type:
    scalar = I64 if _bits(chunk) == 64 else I32
    return ir.VectorType(scalar, chunk.type.count) if isinstance(chunk.type, ir.VectorType) else scalar


def fma(builder: ir.IRBuilder, a: Chunk, b: Chunk, c: Chunk) -> Chunk:
    """a * b + c, rounded once."""
    return call_intrinsic(builder, f"llvm.fma.{suffix(a.type)}", a.type, [a, b, c])


def _power_of_two(builder: ir.IRBuilder, exponent: Chunk, like: Chunk) -> Chunk:
    bits = _bits(like)
    biased = builder.add(exponent, constant(exponent.type, BIAS[bits]))
    return builder.bitcast(builder.shl(biased, constant(exponent.type, MANTISSA[bits])), like.type)


def _reduced(builder: ir.IRBuilder, x: Chunk) -> tuple[Chunk, Chunk]:
    """exp(r) - 1 and the integer n, for x within the range of the exponential."""
    bits = _bits(x)
    shifted = fma(builder, x, constant(x.type, 1 / math.log(2)), constant(x.type, ROUNDING[bits]))
    n = builder.fsub(shifted, constant(x.type, ROUNDING[bits]))
    r = fma(builder, n, constant(x.type, -LN2_HIGH[bits]), x)
    r = fma(builder, n, constant(x.type, -LN2_LOW[bits]), r)
    series = constant(x.type, 1 / math.factorial(DEGREE[bits]))
    for degree in range(DEGREE[bits] - 1, 0, -1):
        series = fma(builder, series, r, constant(x.type, 1 / math.factorial(degree)))
    form = _integers(x)
    pattern = builder.bitcast(shifted, form)
    origin = {32: 0x4B400000, 64: 0x4338000000000000}[bits]
    return builder.fmul(series, r), builder.sub(pattern, constant(form, origin))


def _within(builder: ir.IRBuilder, x: Chunk, low: float, high: float, beyond: float | None = None) -> Chunk:
    """x, ``low`` where x is below, and ``high`` (or ``beyond``) where x is above. NaN compares false, so NaN stays."""
    lowest, highest = constant(x.type, low), constant(x.type, high)
    instead = highest if beyond is None else constant(x.type, beyond)
    x = builder.select(builder.fcmp_ordered(">", x, highest), instead, x)
    return builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)


def _clamped(builder: ir.IRBuilder, x: Chunk) -> Chunk:
    return _within(builder, x, SMALLEST[_bits(x)], LARGEST[_bits(x)])


def exp(builder: ir.IRBuilder, x: Chunk) -> Chunk:
    """e^x; 0 and infinity beyond the range, denormals in between."""
    series, n = _reduced(builder, _clamped(builder, x))
    result = builder.fadd(series, constant(x.type, 1.0))
    # In two steps, because 2^n may be no normal number.
    half = builder.ashr(n, constant(n.type, 1))
    result = builder.fmul(result, _power_of_two(builder, half, x))
    return builder.fmul(result, _power_of_two(builder, builder.sub(n, half), x))


def expm1(builder: ir.IRBuilder, x: Chunk) -> Chunk:
    """e^x - 1, exact to the last places near 0 as well."""
    series, n = _reduced(builder, _clamped(builder, x))
    half = builder.ashr(n, constant(n.type, 1))
    first, second = _power_of_two(builder, half, x), _power_of_two(builder, builder.sub(n, half), x)
    scaled = builder.fmul(builder.fmul(series, first), second)
    # For large x the two steps keep 2^n - 1 from overflowing before it must.
    power = builder.fmul(first, second)
    large = builder.fcmp_ordered(">", x, constant(x.type, LARGEST[_bits(x)] - 1))
    return builder.select(large, exp(builder, x), builder.fadd(scaled, builder.fsub(power, constant(x.type, 1.0))))


def sigmoid(builder: ir.IRBuilder, x: Chunk) -> Chunk:
    """1 / (1 + e^-x); 0 below -88.3 (float32), where the value would be no normal number."""
    one = constant(x.type, 1.0)
    bits = _bits(x)
    # At LARGEST, 2^n is infinite and r > 0, so e^-x is infinite.
    bounded = _within(builder, builder.fneg(x), -NORMAL[bits], LARGEST_NORMAL[bits], LARGEST[bits])
    series, n = _reduced(builder, bounded)
    power = _power_of_two(builder, n, x)
    # e^-x + 1 as (series * 2^n + 2^n) + 1.
    return builder.fdiv(one, builder.fadd(one, fma(builder, series, power, power)))


def tanh(builder: ir.IRBuilder, x: Chunk) -> Chunk:
    """(e^2x - 1) / (e^2x + 1), with e^2x - 1 computed as such."""
    bounded = _within(builder, x, -20.0, 20.0)
    grown = expm1(builder, builder.fadd(bounded, bounded))
    return builder.fdiv(grown, builder.fadd(grown, constant(x.type, 2.0)))


def _sign(builder: ir.IRBuilder, x: Chunk) -> Chunk:
    # 0 for NaN, as in PyTorch.
    zero, one = constant(x.type, 0.0), constant(x.type, 1.0)
    positive = builder.select(builder.fcmp_ordered(">", x, zero), one, zero)
    return builder.select(builder.fcmp_ordered("<", x, zero), builder.fneg(one), positive)


def _intrinsic(name: str) -> Callable[[ir.IRBuilder, Chunk], Chunk]:
    return lambda builder, x: call_intrinsic(builder, f"llvm.{name}.{suffix(x.type)}", x.type, [x])


def per_lane(builder: ir.IRBuilder, name: str, *args: Chunk) -> Chunk:
    """Call the C library for every lane."""
    form, function = args[0].type, name if _bits(args[0]) == 64 else f"{name}f"
    if not isinstance(form, ir.VectorType):
        return call_intrinsic(builder, function, form, list(args))
    result = ir.Constant(form, ir.Undefined)
    for lane in range(form.count):
        index = ir.Constant(I32, lane)
        scalars = [builder.extract_element(arg, index) for arg in args]
        result = builder.insert_element(result, call_intrinsic(builder, function, form.element, scalars), index)
    return result


def _library(name: str) -> Callable[[ir.IRBuilder, Chunk], Chunk]:
    return lambda builder, x: per_lane(builder, name, x)


def _negate(builder: ir.IRBuilder, x: Chunk) -> Chunk:
    return builder.fneg(x) if is_float(x) else builder.neg(x)


UNARY: dict[str, Callable[[ir.IRBuilder, Chunk], Chunk]] = {
    "neg": _negate,
    "abs": _intrinsic("fabs"),
    "exp": exp,
    "expm1": expm1,
    "log": _library("log"),
    "log1p": _library("log1p"),
    "sqrt": _intrinsic("sqrt"),
    "rsqrt": lambda builder, x: builder.fdiv(constant(x.type, 1.0), _intrinsic("sqrt")(builder, x)),
    "reciprocal": lambda builder, x: builder.fdiv(constant(x.type, 1.0), x),
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": _library("erf"),
    "sign": _sign,
    "floor": _intrinsic("floor"),
    "sin": _library("sin"),
    "cos": _library("cos"),
    "detach": lambda _builder, x: x,
    "not": lambda builder, x: builder.not_(x),
}
"Builders by the name of the op."

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
    "pow": lambda builder, a, b: per_lane(builder, "pow", a, b),
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
    build = BINARY.get(name) or UNARY[name]

    def gives(*operands: Any) -> Block:
        return widest(*operands).of("b1") if name in COMPARISONS else widest(*operands)

    @emitted(gives, *[None] * num_operands)
    def operation(builder: ir.IRBuilder, signature: Any, *values: ir.Value) -> ir.Value:
        target = widest(*signature.args)
        operands = zip(signature.args, values, strict=True)
        lanes = zip(*(spread(builder, given, value, target) for given, value in operands), strict=True)
        return pack(builder, signature.return_type, [build(builder, *chunks) for chunks in lanes])

    return operation


OPERATIONS = {name: _operation(name, 2) for name in BINARY} | {name: _operation(name, 1) for name in UNARY}
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
