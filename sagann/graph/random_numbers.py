"""Random numbers by counter: number i depends on the seed and i alone.

Threads and chunks draw independently, so the numbers of threads and chunks do not change the output. The generator is
SplitMix64: every item has a stream of its own, which starts at a hash of the seed, a purpose and the item.

References:
    Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from sagann.errors import require_type
from sagann.jit import compiled, pytorch_threads

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
TO_UNIT = 2.0**-53


@compiled(inline="always")
def mix(state: Any) -> Any:
    """Hash 64 bits: the output function of SplitMix64, a bijection."""
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled(inline="always")
def stream_of(key: Any, item: Any) -> Any:
    """The state before the first draw of an item's stream; each draw adds GOLDEN and mixes."""
    return mix(key + GOLDEN * np.uint64(item))


@compiled(inline="always")
def unit(bits: Any) -> Any:
    """Turn 64 random bits into a float64 in [0, 1)."""
    return np.float64(bits >> np.uint64(11)) * TO_UNIT


@compiled(inline="always")
def below(bits: Any, end: Any) -> Any:
    """Turn 64 random bits into an int64 from 0 to ``end - 1``; any two probabilities differ by 2^-53 at most."""
    # The largest float64 below 1 times `end` rounds to less than `end`.
    return np.int64(unit(bits) * np.float64(end))


def key_of(seed: int, purpose: int, *counters: int) -> np.uint64:
    """The key of all draws for one purpose. ``purpose`` is a small number that keeps the draws of one seed apart.

    ``counters`` keep draws for one purpose apart, for example those of every epoch. Their order counts.
    """
    require_type(seed, (int, np.integer), where="seed", hint="Pass an integer, as seed=0.")
    word = _hashed(int(seed) * 0x9E3779B97F4A7C15 + purpose * 0xD1B54A32D192ED03)
    for counter in counters:
        # The last number keeps 0, whose hash is 0, from being the key of several counters.
        word = _hashed(word * 0x9E3779B97F4A7C15 + counter * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019)
    return np.uint64(word)


def _hashed(word: int) -> int:
    """:func:`mix` of the low 64 bits."""
    word %= 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        word = (word ^ (word >> shift)) * factor % 2**64
    return word


def normals(num_rows: int, num_columns: int, *, seed: int, purpose: int) -> Tensor:
    """Draw standard normal numbers, float32 [num_rows, num_columns]."""
    out = torch.empty(num_rows, num_columns)
    with pytorch_threads():
        _fill_normals(key_of(seed, purpose), out.view(-1).numpy())
    return out


def uniforms(count: int, *, seed: int, purpose: int) -> Tensor:
    """Draw uniform numbers in [0, 1), float64 [count]."""
    out = torch.empty(count, dtype=torch.float64)
    with pytorch_threads():
        _fill_uniforms(key_of(seed, purpose), out.numpy())
    return out


@compiled(parallel=True)
def _fill_uniforms(key: Any, out: Any) -> None:
    for i in prange(len(out)):
        out[i] = unit(stream_of(key, i))


@compiled(parallel=True)
def _fill_normals(key: Any, out: Any) -> None:
    # Box-Muller: two numbers of one stream give two normal ones.
    for pair in prange((len(out) + 1) // 2):
        first = stream_of(key, pair)
        radius = math.sqrt(-2.0 * math.log(1.0 - unit(first)))
        angle = 2.0 * math.pi * unit(mix(first + GOLDEN))
        out[2 * pair] = radius * math.cos(angle)
        if 2 * pair + 1 < len(out):
            out[2 * pair + 1] = radius * math.sin(angle)
