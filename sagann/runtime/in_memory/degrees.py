"""What a mean divides by."""

from __future__ import annotations

from torch import Tensor


def divisors(in_degrees: Tensor, like: Tensor) -> Tensor:
    """In-degrees, 1 where there are none, that broadcast against rows of destinations like ``like``."""
    found = in_degrees.clamp(min=1).to(like.dtype).reshape(-1, *(1,) * (like.ndim - 1))
    if like.is_cuda and not found.is_cuda:
        # From pinned memory, so that the host need not wait for what the device computes before.
        return found.pin_memory().to(like.device, non_blocking=True)
    return found
