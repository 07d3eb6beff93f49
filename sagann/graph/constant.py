"""Constant tensors: features whose owner says that they are the same in every epoch.

What a layer gathers of constant features is the same in every epoch as well, so that it may be kept. Nothing else tells
constant features from computed ones: the result of dropout needs no gradient either.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_DECLARED = WeakTensorKeyDictionary()


def declare_constant(features: Tensor) -> Tensor:
    """Say that a tensor is the same in every epoch, as :class:`~sagann.Graph` does for its features; returns the tensor.

    A change in place is noticed by PyTorch's version counter; a change by NumPy or through ``.data`` is not.
    """
    _DECLARED[features] = True
    return features


def is_constant(features: Tensor) -> bool:
    """Whether the tensor was declared constant, and needs no gradient."""
    return not features.requires_grad and features in _DECLARED
