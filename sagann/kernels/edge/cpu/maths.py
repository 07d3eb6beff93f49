"""Functions of one chunk (a vector or a scalar) as LLVM instructions.

exp, expm1, sigmoid and tanh are polynomials, because LLVM has no vector form of them. Rare functions (log, erf, sin and
others) call the C library lane by lane.

exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2. exp(r) - 1 is a Taylor series, of degree 6 in float32 and 13
in float64. Its remainder is below a unit in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir

from sagann.kernels.edge.cpu.block import I32, I64, call_intrinsic, constant, suffix

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


def _relu(builder: ir.IRBuilder, x: Chunk) -> Chunk:
    zero = constant(x.type, 0.0)
    return builder.select(builder.fcmp_ordered("<=", x, zero), zero, x)


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
    "relu": _relu,
    "erf": _library("erf"),
    "sign": _sign,
    "floor": _intrinsic("floor"),
    "sin": _library("sin"),
    "cos": _library("cos"),
    "detach": lambda _builder, x: x,
    "not": lambda builder, x: builder.not_(x),
}
"Builders by the name of the op."
