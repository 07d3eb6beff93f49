"""What tells whether a tensor is still the same: the count of its changes in place, and features that their owner declares constant.

The aggregate of constant features is constant too, so a layer may keep it. Constant tensors must be declared, because
they cannot be recognised: the result of dropout needs no gradient either, but changes in every epoch. A feature store is constant: the
same ids always give the same rows.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sagann.graph.feature_store import Features

_CONSTANT = WeakTensorKeyDictionary()


def version_of(tensor: Tensor) -> int:
    """Number of changes in place; -1 for a tensor made in inference mode, whose changes PyTorch does not count."""
    return -1 if tensor.is_inference() else tensor._version


def declare_constant(features: Tensor) -> Tensor:
    """Declare that features are the same in every epoch, and return them. :class:`~sagann.Graph` declares its features.

    PyTorch's version counter reveals a change in place. A change by NumPy or through ``.data`` stays unnoticed.
    """
    _CONSTANT[features] = True
    return features


def is_constant(features: Features) -> bool:
    """Whether features are constant and need no gradient."""
    return not isinstance(features, Tensor) or (not features.requires_grad and features in _CONSTANT)
