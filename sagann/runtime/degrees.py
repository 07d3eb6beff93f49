"""What a mean divides by."""

from __future__ import annotations

from torch import Tensor


def divisors(in_degrees: Tensor, like: Tensor) -> Tensor:
    """In-degrees, 1 where there are none, that broadcast against rows of destinations like ``like``."""
    return in_degrees.clamp(min=1).to(like).reshape(-1, *(1,) * (like.ndim - 1))
