"""Constant features: features that their owner declares to be the same in every epoch.

The aggregate of constant features is constant too, so a layer may keep it. Constant features must be declared, because
they cannot be recognised: the result of dropout needs no gradient either, but changes in every epoch.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from sagann.errors import InputError
from sagann.graph.feature_store import Features

_TENSORS = WeakTensorKeyDictionary()
_STORES = WeakIdKeyDictionary()
F = TypeVar("F", bound=Features)


def declare_constant(features: F) -> F:
    """Declare that features are the same in every epoch, and return them. :class:`~sagann.Graph` declares its features.

    PyTorch's version counter reveals a change of a tensor in place. A change by NumPy or through ``.data`` stays
    unnoticed, and so does a change of the rows of a feature store.

    Raises:
        InputError: a feature store does not support weak references.
    """
    if isinstance(features, Tensor):
        _TENSORS[features] = True
        return features
    try:
        _STORES[features] = True
    except TypeError as error:
        raise InputError(
            f"a feature store does not support weak references: {error} (in {type(features).__name__})",
            hint="Add '__weakref__' to its __slots__, or weakref_slot=True to its dataclass.",
        ) from error
    return features


def is_constant(features: Features) -> bool:
    """Whether features are declared constant and need no gradient."""
    if isinstance(features, Tensor):
        return not features.requires_grad and features in _TENSORS
    return features in _STORES
