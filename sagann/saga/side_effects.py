"""Side effects: attributes and containers that a user's function changes are found and put back.

A check runs functions of layers and models on made-up rows, a trace on fake tensors. Neither may leave such values behind, and
a program that is made from a trace would not repeat the change, nor call the hooks of a module.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

_KINDS = (list, OrderedDict, dict, set, deque)
_DEPTH = 3
"Levels to which containers inside containers are followed."
_MOST_ITEMS = 100_000
"Number of items; larger containers are left alone, because they would have to be copied."
_OF_MODULES = frozenset(vars(nn.Module())) - {"_buffers"}
"Attributes in which PyTorch keeps a module's parameters, hooks and so on."
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextmanager
def taken_back(root: nn.Module) -> Iterator[list[str]]:
    """Put back, when the ``with`` block ends, what functions of a module and of its submodules changed inside the block.

    This covers attributes of the modules, and lists, dictionaries, sets and deques that are held by attributes or by closures
    and globals of the modules' own functions. It does not cover closures and globals of functions that those call.

    Args:
        root: the module.
    Yields:
        The changes in words, filled in when the block ends.
    """
    changed: list[str] = []
    attributes = [(vars(module), dict(vars(module))) for module in root.modules()]
    containers = [(name, held, _items(held)) for name, held in _containers(root).values()]
    try:
        yield changed
    finally:
        for held, saved in attributes:
            for name in sorted(held.keys() - saved.keys()):
                changed.append(f"it sets the attribute '{name}'")
                del held[name]
            # Attribute by attribute: other threads may read the unchanged ones meanwhile.
            for name, value in saved.items():
                if held.get(name, attributes) is not value:
                    changed.append(f"it {'sets' if name in held else 'deletes'} the attribute '{name}'")
                    held[name] = value
        for name, held, items in containers:
            if list(map(_identities, _items(held))) != list(map(_identities, items)):
                changed.append(f"it changes '{name}', a {type(held).__name__}")
                _put_back(held, items)


def _containers(root: nn.Module) -> dict[int, tuple[str, Any]]:
    """Names and containers, by the containers' addresses."""
    found: dict[int, tuple[str, Any]] = {}
    for module in root.modules():
        for name in vars(module).keys() - _OF_MODULES:
            _follow(name, vars(module)[name], found)
        for name, value in _seen_by_functions(module):
            _follow(name, value, found)
    return found


def _follow(name: str, value: object, found: dict[int, tuple[str, Any]], depth: int = _DEPTH) -> None:
    # The type of a proxy is its own, not that of its target.
    base = _base(value)
    if base is None or id(value) in found or base.__len__(value) > _MOST_ITEMS:
        return
    found[id(value)] = name, value
    if depth > 1:
        for item in _items(value):
            _follow(name, item[-1], found, depth - 1)


def _seen_by_functions(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Names and values in closures and globals of the functions that the module's class and attributes hold."""
    owners = [owner for owner in type(module).__mro__ if not owner.__module__.startswith(("torch.", "sagann."))]
    members: list[object] = [member for owner in owners for member in vars(owner).values()]
    for member in (*members, *vars(module).values()):
        function = member.__func__ if type(member) in (MethodType, staticmethod, classmethod) else member
        if type(function) is not FunctionType:
            continue
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:
                # The closure's cell is not filled yet.
                continue
        for name in _global_names(function.__code__):
            yield name, function.__globals__.get(name)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _base(value: object) -> Any:
    """The kind of a container; None for other values."""
    return next((kind for kind in _KINDS if issubclass(type(value), kind)), None)


def _items(held: Any) -> list[tuple[Any, ...]]:
    """A container's items, or its pairs of keys and values, read without the methods of a subclass."""
    if issubclass(type(held), dict):
        return list(dict.items(held))
    return [(item,) for item in _base(held).__iter__(held)]


def _identities(item: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(map(id, item))


def _put_back(held: Any, items: list[tuple[Any, ...]]) -> None:
    base = _base(held)
    base.clear(held)
    if issubclass(base, dict):
        base.update(held, items)
    elif base is set:
        set.update(held, [item for (item,) in items])
    else:
        base.extend(held, [item for (item,) in items])


@contextmanager
def without_hooks(root: nn.Module, run: Callable[..., Any]) -> Iterator[None]:
    """Inside the ``with`` block, calls of the modules inside ``root`` that have hooks call ``run`` instead."""
    hooked = [module for module in root.modules() if module is not root and has_hooks([module])]
    for module in hooked:
        vars(module)["_call_impl"] = run
    try:
        yield
    finally:
        for module in hooked:
            del vars(module)["_call_impl"]


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether one of the modules has hooks, or hooks were registered for all modules."""
    of_all = any(getattr(torch.nn.modules.module, f"_global{hooks}") for hooks in _HOOKS)
    return of_all or any(getattr(module, hooks) for module in modules for hooks in _HOOKS)
