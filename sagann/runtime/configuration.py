"""What a trace bakes in of a layer: a program holds as long as this stays equal.

Plain values are compared by value, containers by what they hold, functions by their code and what they close over,
members of the user's classes and other objects by identity. Parameters and buffers are read at every run, so only their
names, shapes and types count. What a function reads from outside its layer (a global, say) is taken as it was when it was traced.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from sagann.compiler.trace import tensors_of
from sagann.graph.versions import version_of
from sagann.saga.layer import SagaLayer

Key = tuple[object, ...]

# nn.Module's own: parameters, buffers and modules are looked at by name, hooks by whether there are any.
_OF_MODULES = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    BuiltinFunctionType,
    CodeType,
)
DEEPEST = 5
"Containers in containers that are looked into; what is deeper counts by identity."


def configuration(root: nn.Module) -> Key:
    """A key that is equal as long as a program of the layer, or of the model, holds."""
    found: list[object] = []
    for name, module in root.named_modules(remove_duplicate=False):
        found += [name, type(module), module.training]
        found += (_Same(member) for owner in _users(type(module)) for member in vars(owner).values())  # type: ignore[arg-type]
        if isinstance(module, SagaLayer):
            found += [module.accumulator, module.max_degree]
        for attribute, value in vars(module).items():
            if attribute not in _OF_MODULES and attribute != "_independence":
                found.append((attribute, _frozen(value, DEEPEST)))
    for name, tensor in tensors_of(root).items():
        found.append((name, tensor.shape, tensor.dtype))
    return tuple(found)


@functools.cache
def _users(kind: type) -> list[type]:
    """Of a class and those that it extends, the user's own."""
    return [
        owner for owner in kind.__mro__ if owner.__module__.partition(".")[0] not in ("torch", "sagann", "builtins")
    ]


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether a module has hooks, or all modules have, which a program would not call."""
    of_all = any(getattr(torch.nn.modules.module, f"_global{hooks}") for hooks in _HOOKS)
    return of_all or any(getattr(module, hooks) for module in modules for hooks in _HOOKS)


class _Same:
    """Equal to itself alone."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _frozen(value: Any, depth: int) -> object:
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, nn.Module):
        # Not kept alive by a key; a part of the layer is looked at where it stands.
        return "module", id(value)
    if isinstance(value, Tensor):
        # A number is part of the program; of larger tensors the program reads what they hold when it runs.
        return ("tensor", _Same(value), version_of(value)) if value.numel() == 1 else ("tensor", id(value))
    if depth == 0:
        return _Same(value)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_frozen(item, depth - 1) for item in value)
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(_frozen(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return type(value), tuple((_frozen(key, 1), _frozen(item, depth - 1)) for key, item in value.items())
    if isinstance(value, MethodType):
        return "method", id(value.__self__), value.__func__.__code__ if hasattr(value.__func__, "__code__") else 0
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell.cell_contents is not value]
        return value.__code__, _frozen([cells, value.__defaults__, value.__kwdefaults__], depth - 1)
    if isinstance(value, functools.partial):
        return "partial", _frozen([value.func, value.args, value.keywords], depth - 1)
    state = getattr(value, "__dict__", None)
    return _Same(value), _frozen(state, depth - 1) if isinstance(state, dict) else None
