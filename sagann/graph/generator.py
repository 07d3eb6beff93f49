"""PyTorch's generators of random numbers, which splits and orders of vertices are drawn with."""

from __future__ import annotations

from operator import index

import torch


def generator_of(seed: int) -> torch.Generator:
    """A generator on the processor for any whole number. Numbers that are equal modulo 2^64 are the same seed, as for all other draws.

    Example:
        >>> generator_of(2**64 + 7).initial_seed()
        7
    """
    # PyTorch refuses larger numbers.
    return torch.Generator().manual_seed(index(seed) % 2**64)
