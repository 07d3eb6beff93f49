"""Divisors of a mean."""

from __future__ import annotations

from torch import Tensor


def divisors(in_degrees: Tensor, like: Tensor) -> Tensor:
    """In-degrees, or 1 where there are no in-edges, in the type of ``like`` and for a division of its rows."""
    found = in_degrees.clamp(min=1).to(like.dtype).reshape(-1, *(1,) * (like.ndim - 1))
    if like.is_cuda and not found.is_cuda:
        # A copy from pinned memory lets the host go on while the device computes.
        return found.pin_memory().to(like.device, non_blocking=True)
    return found
