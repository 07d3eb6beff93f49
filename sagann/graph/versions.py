"""Versions: how to see that a tensor was changed in place."""

from __future__ import annotations

from torch import Tensor


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place; -1 of one made in inference mode, whose changes PyTorch does not count."""
    return -1 if tensor.is_inference() else tensor._version
