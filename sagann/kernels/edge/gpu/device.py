"""Functions of lanes for generated Triton kernels: functions that Triton lacks or computes too coarsely.

Triton's exp in float32 loses a bit for every doubling of its argument. tanh, expm1, log1p and pow exist only in a library that
the interpreter cannot run. Here exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2. In float32, exp(r) is Triton's
exp2 of r / ln 2. In float64, exp is Triton's. In expm1, exp(r) - 1 is a Taylor series of degree 7 in float32 and 13 in float64.

Numbers stand beside tensors in sums and products only. Elsewhere Triton would take them for float32.

Legend: n an integral exponent, r the rest of the argument, m_ a mask.
"""

# Arguments of Triton's functions are tensors where no type is stated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import triton
import triton.language as tl

from sagann.kernels.edge import random

LOG2_E = tl.constexpr(1.4426950408889634)
# ln 2 as a sum. The upper part has trailing zeros, so its product with n is exact.
LN2_HIGH_32, LN2_LOW_32 = tl.constexpr(0.693359375), tl.constexpr(-2.12194440e-4)
LN2_HIGH_64, LN2_LOW_64 = tl.constexpr(6.93147180369123816490e-01), tl.constexpr(1.90821492927058770002e-10)
EDGE_STEP, FEATURE_STEP = tl.constexpr(random.EDGE_STEP), tl.constexpr(random.FEATURE_STEP)
FIRST_FACTOR, SECOND_FACTOR = tl.constexpr(random.FIRST_FACTOR), tl.constexpr(random.SECOND_FACTOR)
UNUSED_BITS = tl.constexpr(32 - random.BITS)


@triton.jit
def within(x, low: tl.constexpr, high: tl.constexpr):
    """x, or the nearer bound; NaN stays, because it compares false."""
    x = tl.where(x > high, high, x)
    return tl.where(x < low, low, x)


@triton.jit
def exp(x):
    """e^x; 0 and infinity beyond the range."""
    if x.dtype == tl.float64:
        y = tl.exp(x)
    else:
        x = within(x, -104.0, 89.0)
        n = tl.floor(x * LOG2_E + 0.5)
        r = (x - n * LN2_HIGH_32) - n * LN2_LOW_32
        # Doubled here and halved there: 2^128 is no float32, but e^88.7 is.
        y = (tl.exp2(r * LOG2_E) * 2.0) * tl.exp2(n - 1.0)
    return y


@triton.jit
def expm1(x):
    """e^x - 1, exact to the last places near 0 as well."""
    if x.dtype == tl.float64:
        bounded = within(x, -746.0, 709.0)
        n = tl.floor(bounded * LOG2_E + 0.5)
        r = (bounded - n * LN2_HIGH_64) - n * LN2_LOW_64
        s = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0
        s = s * r + 1.0 / 39916800.0
        s = s * r + 1.0 / 3628800.0
        s = s * r + 1.0 / 362880.0
        s = s * r + 1.0 / 40320.0
        s = s * r + 1.0 / 5040.0
    else:
        bounded = within(x, -104.0, 88.0)
        n = tl.floor(bounded * LOG2_E + 0.5)
        r = (bounded - n * LN2_HIGH_32) - n * LN2_LOW_32
        s = tl.full(r.shape, 1.0 / 5040.0, r.dtype)
    s = s * r + 1.0 / 720.0
    s = s * r + 1.0 / 120.0
    s = s * r + 1.0 / 24.0
    s = s * r + 1.0 / 6.0
    s = s * r + 0.5
    s = (s * r + 1.0) * r
    power = tl.exp2(n)
    grown = s * power + (power - 1.0)
    return tl.where(x > bounded, exp(x), grown)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + exp(-x))


@triton.jit
def tanh(x):
    """(e^2x - 1) / (e^2x + 1), with e^2x - 1 computed as such."""
    grown = expm1(2.0 * within(x, -20.0, 20.0))
    return grown / (grown + 2.0)


@triton.jit
def log1p(x):
    """log(1 + x): the rounding of 1 + x is divided out again."""
    grown = 1.0 + x
    y = tl.log(grown) * (x / (grown - 1.0))
    return tl.where((grown == 1.0) | (grown == float("inf")), x, y)


@triton.jit
def sqrt(x):
    """The square root, rounded to nearest."""
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


@triton.jit
def power(a, b):
    """a to the power b, computed in float64."""
    base, exponent = a.to(tl.float64), b.to(tl.float64)
    size = tl.abs(base)
    grown = tl.exp(exponent * tl.log(size))
    grown = tl.where((exponent == 0.0) | (size == 1.0), 1.0, grown)
    integral = tl.floor(exponent) == exponent
    odd = integral & (tl.floor(exponent * 0.5) * 2.0 != exponent)
    finite = size != float("inf")
    grown = tl.where((base < 0.0) & odd, -grown, grown)
    grown = tl.where((base < 0.0) & finite & (integral == 0), float("nan"), grown)
    m_nan = (base != base) & (exponent != 0.0)
    m_nan = m_nan | ((exponent != exponent) & (base != 1.0))
    return tl.where(m_nan, float("nan"), grown).to(a.dtype)


@triton.jit
def sign(x):
    """-1, 0 or 1; 0 for NaN, as in PyTorch."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def maximum(a, b):
    """The larger; NaN where either is."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def minimum(a, b):
    """The smaller; NaN where either is."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def amax(x, axis: tl.constexpr, keep_dims: tl.constexpr = False):
    """The largest along an axis; NaN where one is."""
    m_nan = tl.max((x != x).to(tl.int32), axis, keep_dims=keep_dims) > 0
    largest = tl.max(x, axis, keep_dims=keep_dims)
    return largest if x.dtype.is_int() else tl.where(m_nan, float("nan"), largest)


@triton.jit
def amin(x, axis: tl.constexpr, keep_dims: tl.constexpr = False):
    """The smallest along an axis; NaN where one is."""
    m_nan = tl.max((x != x).to(tl.int32), axis, keep_dims=keep_dims) > 0
    smallest = tl.min(x, axis, keep_dims=keep_dims)
    return smallest if x.dtype.is_int() else tl.where(m_nan, float("nan"), smallest)


@triton.jit
def first_of(best, where, extremum):
    """Along axis 0, kept, the smallest position at which ``best`` is the extremum."""
    attained = (best == extremum) | ((best != best) & (extremum != extremum))
    return tl.min(tl.where(attained, where, 2147483647), 0, keep_dims=True)


@triton.jit
def times(a, b):
    """Their product."""
    return a * b


@triton.jit
def product(x):
    """The product along axis 0, kept."""
    return tl.reduce(x, 0, times, keep_dims=True)


@triton.jit
def mix(value):
    """:func:`sagann.kernels.edge.random.mix` of unsigned 32-bit lanes."""
    value = value ^ (value >> 16)
    value = value * FIRST_FACTOR
    value = value ^ (value >> 13)
    value = value * SECOND_FACTOR
    return value ^ (value >> 16)


@triton.jit
def draw(
    edge_id, feature, seed, salted: tl.constexpr, threshold: tl.constexpr, scale: tl.constexpr, dtype: tl.constexpr
):
    """:func:`sagann.kernels.edge.random.random_rows`: int64 [E, 1...] edges by [1, ...] features."""
    counter = edge_id.to(tl.uint32) * EDGE_STEP + (edge_id >> 32).to(tl.uint32) * FEATURE_STEP
    edge = mix(counter + (seed.to(tl.uint32) + salted))
    draws = mix(edge + feature.to(tl.uint32) * FEATURE_STEP) >> UNUSED_BITS
    return (draws >= threshold).to(dtype) * scale
