"""Float32 as the kernels compute it, for the values model: rounded to nearest even; numbers below the least normal one are zero.

A result is rounded as if its exponent had no lower bound, and is a zero of the same sign if it is below the least normal number then. NaN has
one form. Everything else is IEEE 754, that is, NumPy's float32.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from sagann.jit import compiled

Array: TypeAlias = np.ndarray[Any, Any]

_LEAST = 2.0**-126
# Numbers of 24 bits below the least normal one are 2^-150 apart, so a product from here on is rounded up to it.
_ROUNDS_UP = _LEAST - 2.0**-151
_NAN = np.float32(np.nan)


@compiled(inline="always")
def flushed(value: Any) -> Any:
    """A float32 with subnormal numbers as zeros of their sign, and NaN in its one form."""
    if value != value:
        return _NAN
    return np.float32(np.copysign(0.0, value)) if abs(value) < np.float32(_LEAST) else value


@compiled(inline="always")
def mul(a: Any, b: Any) -> Any:
    """The product of two float32 numbers."""
    # The product of 24 bits each is exact in float64.
    exact = np.float64(flushed(a)) * np.float64(flushed(b))
    if abs(exact) < _ROUNDS_UP:
        return np.float32(np.copysign(0.0, exact))
    return flushed(np.float32(exact))


@compiled(inline="always")
def add(a: Any, b: Any) -> Any:
    """The sum of two float32 numbers. A sum below the least normal number is exact before it is flushed."""
    return flushed(np.float32(flushed(a) + flushed(b)))


@compiled()
def _aggregated(indptr: Array, rows: Array, coefficients: Array, features: Array, result: Array) -> None:
    for destination in range(len(indptr) - 1):
        for edge in range(indptr[destination], indptr[destination + 1]):
            for column in range(features.shape[1]):
                product = mul(features[rows[edge], column], coefficients[edge])
                result[destination, column] = add(result[destination, column], product)


@compiled()
def _mapped(rows: Array, weights: Array, bias: Array, lanes: int, result: Array) -> None:
    for row in range(len(rows)):
        for column in range(weights.shape[1]):
            total = bias[column]
            for first in range(0, rows.shape[1], lanes):
                tile = np.float32(0)
                for inner in range(first, first + lanes):
                    tile = add(tile, mul(rows[row, inner], weights[inner, column]))
                total = add(total, tile)
            result[row, column] = total


@compiled()
def _outer(rows: Array, grads: Array, result: Array) -> None:
    for row in range(len(rows)):
        for inner in range(rows.shape[1]):
            for column in range(grads.shape[1]):
                product = mul(rows[row, inner], grads[row, column])
                result[inner, column] = add(result[inner, column], product)


def aggregated(indptr: Array, rows: Array, coefficients: Array, features: Array) -> Array:
    """The sum over the edges of each destination of coefficient times row, added in the order of the edges, from 0.

    Args:
        indptr: edges of destination d are ``indptr[d]`` to ``indptr[d + 1] - 1``; int64 [num_dst + 1].
        rows: the row that each edge reads, int64 [num_edges].
        coefficients: float32 [num_edges].
        features: float32 [num_rows, F].
    """
    result = np.zeros((len(indptr) - 1, features.shape[1]), dtype=np.float32)
    _aggregated(indptr, rows, coefficients, features, result)
    return result


def mapped(rows: Array, weights: Array, bias: Array, *, lanes: int, relu: bool = False) -> Array:
    """Rows times weights plus bias, as the systolic array adds: sums of ``lanes`` products each, which are added to the bias in turn.

    Args:
        rows: float32 [n, F].
        weights: float32 [F, G].
        bias: float32 [G].
        lanes: rows of the array; F is padded to a multiple with zeros.
        relu: replace negative results, and -0, by 0.
    """
    pad = -rows.shape[1] % lanes
    result = np.empty((len(rows), weights.shape[1]), dtype=np.float32)
    _mapped(np.pad(rows, ((0, 0), (0, pad))), np.pad(weights, ((0, pad), (0, 0))), bias, lanes, result)
    return np.where(np.signbit(result), np.float32(0), result) if relu else result


def outer(rows: Array, grads: Array, total: Array) -> None:
    """Add the gradient of weights, rows^T times grads, to ``total``, float32 [F, G]: products are added in the order of the rows."""
    _outer(rows, grads, total)
