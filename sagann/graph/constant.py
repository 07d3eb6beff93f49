"""Constant tensors: features that their owner declares to be the same in every epoch.

The aggregate of constant features is constant too, so a layer may keep it. Only the declaration tells constant features from
computed ones: the result of dropout needs no gradient either.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_DECLARED = WeakTensorKeyDictionary()


def declare_constant(features: Tensor) -> Tensor:
    """Declare that a tensor is the same in every epoch, as :class:`~sagann.Graph` does for its features; return the tensor.

    PyTorch's version counter detects a change in place, but not a change by NumPy or through ``.data``.
    """
    _DECLARED[features] = True
    return features


def is_constant(features: Tensor) -> bool:
    """Whether a tensor is declared constant and needs no gradient."""
    return not features.requires_grad and features in _DECLARED
