"""Side effects: attributes and containers that a user's function changes are found and put back.

A check runs functions of layers and models on made-up rows, a trace on fake tensors. Neither may leave such values behind, and
a program that is made from a trace would not repeat the change, nor call the hooks of a module.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from inspect import getclosurevars
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

_CONTAINERS = (list, dict, OrderedDict, defaultdict, set, deque)
_MOST_ITEMS = 100_000
"Number of items; larger containers are left alone, because they would have to be copied."
_OF_MODULES = frozenset(vars(nn.Module())) - {"_buffers"}
"Attributes in which PyTorch keeps a module's parameters, hooks and so on."
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextmanager
def taken_back(root: nn.Module) -> Iterator[list[str]]:
    """Put back, when the ``with`` block ends, what was changed inside it: attributes of a module and of its submodules, and lists,
    dictionaries, sets and deques that they hold, also inside each other, or that their own functions find in closures and globals.

    Yields:
        The changes in words, filled in when the block ends.
    """
    changed: list[str] = []
    attributes = [(vars(module), dict(vars(module))) for module in root.modules()]
    containers: dict[int, tuple[str, Any, Any, list[int]]] = {}
    for module in root.modules():
        held = {name: value for name, value in vars(module).items() if name not in _OF_MODULES}
        for name, value in (*held.items(), *_seen_by_functions(module, held.values())):
            _keep(name, value, containers)
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
        for name, held, saved, items in containers.values():
            if list(map(id, _items(held))) != items:
                changed.append(f"it changes '{name}', a {type(held).__name__}")
                held.clear()
                (held.update if isinstance(held, dict | set) else held.extend)(saved)


def _seen_by_functions(module: nn.Module, attributes: Iterable[object]) -> Iterator[tuple[str, object]]:
    """Names and values in closures and globals of the functions of a module's class and attributes."""
    owners = [owner for owner in type(module).__mro__ if not owner.__module__.startswith(("torch.", "sagann."))]
    for member in (*attributes, *(member for owner in owners for member in vars(owner).values())):
        function = member.__func__ if type(member) in (MethodType, staticmethod, classmethod) else member
        # A closure may not be filled yet.
        with suppress(ValueError):
            if type(function) is FunctionType:
                seen = getclosurevars(function)
                yield from (*seen.nonlocals.items(), *seen.globals.items())


def _keep(name: str, value: Any, containers: dict[int, tuple[str, Any, Any, list[int]]]) -> None:
    """Add a copy of a container with the addresses of its items, and those of containers inside it, by their addresses."""
    if type(value) in _CONTAINERS and id(value) not in containers and len(value) <= _MOST_ITEMS:
        # The order of a set may not be that of its copy.
        containers[id(value)] = name, value, copy(value), list(map(id, _items(value)))
        for item in _items(value):
            _keep(name, item, containers)


def _items(held: Any) -> list[Any]:
    return [*held, *held.values()] if isinstance(held, dict) else [*held]


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
