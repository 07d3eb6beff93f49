"""Version numbers of tensors: each change of a tensor in place raises its number."""

from __future__ import annotations

from torch import Tensor


def version_of(tensor: Tensor) -> int:
    """Number of changes in place; -1 for a tensor made in inference mode, whose changes PyTorch does not count."""
    return -1 if tensor.is_inference() else tensor._version
