"""Configuration: the part of a layer that a trace bakes into a program. A program holds as long as this key stays equal.

Plain values are compared by value, containers by their content, functions by their code and their closures, and members of
the user's classes and other objects by identity and content. A program reads parameters and buffers at every run, so only
their names, shapes and types count. A value that a function reads from outside its layer, as a global, is baked in as it is
during the trace.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from sagann.graph.feature_store import version_of
from sagann.saga.layer import SagaLayer

Key = tuple[object, ...]

# PyTorch's own attributes: parameters, buffers and modules are compared by name; :mod:`sagann.saga.side_effects` looks for hooks.
_OF_MODULES = frozenset(vars(SagaLayer()))
_NUMBERS_AND_TEXT = bool, int, float, complex, str, bytes, type(None)
_PLAIN = (*_NUMBERS_AND_TEXT, torch.dtype, torch.device, BuiltinFunctionType, CodeType)
DEEPEST = 5
"Most levels of nested containers that are compared by content. Deeper objects are compared by identity."


def configuration(root: nn.Module, tensors: Mapping[str, Tensor]) -> Key:
    """A key that is equal as long as a program of the layer, or of the model, with these parameters and buffers holds."""
    found: list[object] = []
    modules = list(root.named_modules(remove_duplicate=False))
    parts = frozenset(id(module) for _, module in modules)
    for name, module in modules:
        found += [name, type(module), module.training]
        found += (_Same(member) for owner in _users(type(module)) for member in vars(owner).values())  # type: ignore[arg-type]
        if isinstance(module, SagaLayer):
            found += [_frozen(module.accumulator, DEEPEST, parts), module.max_degree]
        for attribute, value in vars(module).items():
            if attribute not in _OF_MODULES:
                found.append((attribute, _frozen(value, DEEPEST, parts)))
    for name, tensor in tensors.items():
        found.append((name, tensor.shape, tensor.dtype))
    return tuple(found)


@functools.cache
def _users(kind: type) -> list[type]:
    return [
        owner for owner in kind.__mro__ if owner.__module__.partition(".")[0] not in ("torch", "sagann", "builtins")
    ]


class _Same:
    """Equal to itself alone."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _frozen(value: Any, depth: int, parts: frozenset[int]) -> object:
    """A key that is equal as long as a value stays the same, compared by content for so many levels of nested containers.

    :func:`configuration` compares ``parts``, the root's modules, by itself.
    """
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, nn.Module):
        return _frozen_module(value, depth, parts)
    if isinstance(value, Tensor):
        # A program bakes in a single number, and reads larger tensors when it runs.
        return ("tensor", _Same(value), version_of(value)) if value.numel() == 1 else ("tensor", id(value))
    if depth == 0:
        return _Same(value)
    frozen = functools.partial(_frozen, depth=depth - 1, parts=parts)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(frozen, value))
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(frozen, value))
    if isinstance(value, dict):
        return type(value), tuple((_frozen(key, 1, parts), frozen(item)) for key, item in value.items())
    if isinstance(value, MethodType):
        return "method", frozen(value.__self__), getattr(value.__func__, "__code__", None)
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell.cell_contents is not value]
        return value.__code__, frozen([cells, value.__defaults__, value.__kwdefaults__])
    if isinstance(value, functools.partial):
        return "partial", frozen([value.func, value.args, value.keywords])
    state = getattr(value, "__dict__", None)
    return _Same(value), frozen(state) if isinstance(state, dict) else None


def _frozen_module(module: nn.Module, depth: int, parts: frozenset[int]) -> object:
    """As for a value. The key must not keep the module alive, because the module may hold the layer."""
    # A part of the root is compared by configuration(), and a module around the root is not a part of the root.
    if depth == 0 or not parts.isdisjoint(map(id, module.modules())):
        return "module", ref(module)
    state = {name: value for name, value in vars(module).items() if name not in _OF_MODULES}
    held = [state, module._modules, module._parameters, module._buffers]
    return "module", ref(module), module.training, _frozen(held, depth - 1, parts)
