"""Constant features: those that their owner declares to be the same in every epoch.

The aggregate of constant features is constant too, so a layer may keep it. Only the declaration tells constant features from
computed ones: the result of dropout needs no gradient either.
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
    """Say that features are the same in every epoch, as :class:`~sagann.Graph` does for its own; returns them.

    A change of a tensor in place is noticed by PyTorch's version counter. A change by NumPy or through ``.data``, or of the rows
    of a feature store, is not.

    Raises:
        InputError: a feature store cannot be referred to weakly.
    """
    if isinstance(features, Tensor):
        _TENSORS[features] = True
        return features
    try:
        _STORES[features] = True
    except TypeError as error:
        raise InputError(
            "a feature store cannot be referred to weakly",
            value=str(error),
            where=type(features).__name__,
            fix="Add '__weakref__' to its __slots__, or weakref_slot=True to its dataclass.",
        ) from error
    return features


def is_constant(features: Features) -> bool:
    """Whether features were declared constant, and need no gradient."""
    if isinstance(features, Tensor):
        return not features.requires_grad and features in _TENSORS
    return features in _STORES
