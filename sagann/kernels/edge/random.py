"""Counter-based random numbers for rows of edges or vertices: a function of seed, op, row and feature.

Any pass can draw the numbers again, in any order, on any part of the rows. A number is two rounds of a 32-bit finaliser
(xor-shift and odd multiplication) over the counters. This module is the twin of the kernels in plain PyTorch.

References:
    Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011 (counter-based generators). The finaliser
    is MurmurHash3's fmix32 with its public constants.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sagann.kernels.seeds import Seed

MASK = 0xFFFFFFFF
# Odd constants, so that multiplication is a permutation of the 32-bit integers.
EDGE_STEP, FEATURE_STEP, SALT_STEP = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
FIRST_FACTOR, SECOND_FACTOR = 0x85EBCA6B, 0xC2B2AE35
BITS = 24


def threshold(p: float) -> int:
    """A 24-bit draw below this is dropped."""
    return round(p * (1 << BITS))


def scale(p: float) -> float:
    """Factor of a kept value."""
    return 1 / (1 - p) if p < 1 else 0.0


def random_rows(ids: Tensor, shape: tuple[int, ...], p: float, salt: int, seed: Seed, dtype: torch.dtype) -> Tensor:
    """Draw 0 with probability ``p``, else 1 / (1 - p), for ids of edges or of vertices: [num_rows, *shape].

    ``salt`` is the number of the random op within its function, so that two ops draw different numbers. ``seed`` is the call's,
    from 0 to 2^32 - 1.
    """
    features = torch.arange(math.prod(shape), device=ids.device)
    ids = ids.long()
    keys = mix((ids & MASK) * EDGE_STEP + (ids >> 32) * FEATURE_STEP + ((seed + salt * SALT_STEP) & MASK))
    draws = mix(keys.unsqueeze(1) + features * FEATURE_STEP) >> (32 - BITS)
    return ((draws >= threshold(p)).to(dtype) * scale(p)).reshape(len(ids), *shape)


def mix(counter: Tensor) -> Tensor:
    """Scramble 32-bit counters held in int64."""
    value = counter & MASK
    value = value ^ (value >> 16)
    # The product of two 32-bit numbers overflows int64 at times; its low 32 bits are right all the same.
    value = (value * FIRST_FACTOR) & MASK
    value = value ^ (value >> 13)
    value = (value * SECOND_FACTOR) & MASK
    return value ^ (value >> 16)
