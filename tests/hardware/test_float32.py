"""Float32 operators: the values model against NumPy, and the circuits against the values model, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from sagann.hardware import arithmetic
from sagann.hardware.design import ADD_STAGES, MUL_STAGES

float32 = pytest.importorskip("sagann.hardware.rtl.float32", reason="needs the extra 'hardware'")

from tests.hardware.simulated import results_of  # noqa: E402 - Amaranth may be missing.

Array: TypeAlias = np.ndarray[Any, Any]
Pairs: TypeAlias = tuple[Array, Array]
NUM_PAIRS = 1500
LEAST = np.float32(2.0**-126)
ROUNDS_UP = 2.0**-126 - 2.0**-151
"Products from here on round up to the least normal number."


def _floats(random: np.random.Generator, exponents: tuple[int, int], num: int = NUM_PAIRS, zeros: int = 0) -> Array:
    """Numbers with biased exponents in a range, of whose fractions the last bits are zero."""
    fraction = random.integers(0, 1 << (23 - zeros), num) << zeros
    bits = (random.integers(0, 2, num) << 31) | (random.integers(*exponents, num) << 23) | fraction
    return bits.astype(np.uint32).view(np.float32)


def _any(random: np.random.Generator) -> Pairs:
    """All bits alike: also subnormal numbers, infinity and NaN."""
    return _floats(random, (0, 256)), _floats(random, (0, 256))


def _near(random: np.random.Generator) -> Pairs:
    """Exponents that differ by at most 30: the smaller operand of a sum is shifted."""
    a = _floats(random, (60, 190))
    exponents = (a.view(np.uint32) >> 23 & 255) + random.integers(-30, 31, NUM_PAIRS)
    fraction = random.integers(0, 1 << 23, NUM_PAIRS) | random.integers(0, 2, NUM_PAIRS) << 31
    return a, (fraction | exponents << 23).astype(np.uint32).view(np.float32)


def _close(random: np.random.Generator) -> Pairs:
    """Numbers of opposite sign that are neighbours: a difference loses its first bits, or all."""
    a = _floats(random, (1, 255))
    return a, ((a.view(np.uint32) ^ (1 << 31)) + random.integers(-3, 4, NUM_PAIRS).astype(np.uint32)).view(
        np.float32
    )


def _tied(random: np.random.Generator) -> Pairs:
    """Few bits: products lie in the middle between two numbers, or are exact; so do sums of exponents that are 1 to 24 apart."""
    return _floats(random, (115, 140), zeros=11), _floats(random, (115, 140), zeros=11)


def _tiny(random: np.random.Generator) -> Pairs:
    """Products around the least normal number."""
    return _floats(random, (30, 66)), _floats(random, (62, 98))


def _huge(random: np.random.Generator) -> Pairs:
    """Products and sums around the greatest number."""
    return _floats(random, (186, 255)), _floats(random, (186, 255))


def _least_products(random: np.random.Generator) -> Pairs:
    """Products beside the least normal number, of which those that are near enough round up to it."""
    a = _floats(random, (126, 127))
    return a, (np.float64(LEAST) / a).astype(np.float32)


def _least_sums(random: np.random.Generator) -> Pairs:
    """Differences of least numbers."""
    return _floats(random, (1, 5)), _floats(random, (1, 5))


def _carrying(random: np.random.Generator) -> Pairs:
    """Sums that carry into a further bit, with a smaller operand whose last bits fall off."""
    a = _floats(random, (100, 101), zeros=0)
    a = (a.view(np.uint32) | 0x7FFF00).view(np.float32)
    b = np.copysign(_floats(random, (90, 98)), a)
    return a, b


def _special(random: np.random.Generator) -> Pairs:
    values = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, LEAST, -LEAST, LEAST / 2, np.finfo(np.float32).max])
    return tuple(each.ravel().astype(np.float32) for each in np.meshgrid(values, values))  # type: ignore[return-value]


PAIRS = (_any, _near, _close, _tied, _tiny, _huge, _least_products, _least_sums, _carrying, _special)
OPERATORS = {"mul": (float32.Mul, MUL_STAGES, arithmetic.mul), "add": (float32.Add, ADD_STAGES, arithmetic.add)}


def pairs() -> Pairs:
    """Of every class."""
    found = [each(np.random.default_rng(number)) for number, each in enumerate(PAIRS)]
    return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])


def values_of(operator: Callable[[Any, Any], Any], a: Array, b: Array) -> Array:
    return np.array(list(map(operator, a, b)), dtype=np.float32)


def bits(values: Array) -> Array:
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


@np.errstate(all="ignore")
def test_the_values_are_numpys_with_zeros_below_the_least_normal_number() -> None:
    a, b = pairs()
    a, b = (np.where(np.abs(each) < LEAST, np.copysign(np.float32(0), each), each) for each in (a, b))
    # Products of 24 bits each are exact in float64, and so are sums below the least normal number.
    for found, expected, exact in (
        (values_of(arithmetic.mul, a, b), a * b, a.astype(np.float64) * b),
        (values_of(arithmetic.add, a, b), a + b, a + b),
    ):
        is_zero = np.abs(exact) < ROUNDS_UP
        assert np.array_equal(bits(found)[~is_zero], bits(expected)[~is_zero])
        assert (found[is_zero] == 0).all()
        assert np.array_equal(np.signbit(found[is_zero]), np.signbit(exact[is_zero]))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_circuits_give_the_values(name: str) -> None:
    circuit, stages, operator = OPERATORS[name]
    a, b = pairs()
    assert np.array_equal(bits(results_of(circuit(), stages, a, b)), bits(values_of(operator, a, b)))
