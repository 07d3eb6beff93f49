"""Side effects: what a user's function changes besides tensors, seen and taken back.

Functions of layers and models run on made-up rows to be checked, and on fake ones to be traced. What they set or append then
is of no use to the user, and a program that was made of a trace does neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from types import CodeType, FunctionType
from typing import Any

from torch import nn

_KINDS = (list, dict, set, deque)
_DEPTH = 3
"So far containers are followed into containers."
_MOST_ITEMS = 100_000
"Larger ones are not looked at: they would have to be copied."
_OF_MODULES = frozenset(vars(nn.Module())) - {"_buffers"}
"Attributes that PyTorch keeps a module's parameters, hooks and so on in."


@contextmanager
def taken_back(root: nn.Module) -> Iterator[list[str]]:
    """Put back afterwards what is changed inside the ``with`` block, by functions of a module and of those in it.

    Looked at are attributes of modules, and lists, dictionaries, sets and deques: those that attributes hold, and those that
    functions find in their closures and globals.

    Args:
        root: the module.
    Yields:
        What was changed, in words: filled when the block ends.
    """
    changed: list[str] = []
    attributes = [(module, dict(vars(module))) for module in root.modules()]
    containers = [(name, held, copy(held)) for name, held in _containers(root).values()]
    try:
        yield changed
    finally:
        for module, saved in attributes:
            names = [name for name, value in vars(module).items() if saved.get(name, attributes) is not value]
            changed += [f"it sets the attribute '{name}'" for name in names]
            vars(module).clear()
            vars(module).update(saved)
        for name, held, saved in containers:
            if not _is_as(held, saved):
                changed.append(f"it changes '{name}', a {type(held).__name__}")
                _put_back(held, saved)


def _containers(root: nn.Module) -> dict[int, tuple[str, Any]]:
    """Containers with their names, each once: by their addresses."""
    found: dict[int, tuple[str, Any]] = {}
    for module in root.modules():
        for name in vars(module).keys() - _OF_MODULES:
            _follow(name, vars(module)[name], found)
        for name, value in _seen_by_functions(module):
            _follow(name, value, found)
    return found


def _follow(name: str, value: object, found: dict[int, tuple[str, Any]], depth: int = _DEPTH) -> None:
    if not isinstance(value, _KINDS) or id(value) in found or len(value) > _MOST_ITEMS:
        return
    found[id(value)] = name, value
    if depth > 1:
        for item in list(value.values()) if isinstance(value, dict) else list(value):
            _follow(name, item, found, depth - 1)


def _seen_by_functions(module: nn.Module) -> Iterator[tuple[str, object]]:
    """What functions of the module's class, or in its attributes, may change outside of it, by name."""
    owners = [owner for owner in type(module).__mro__ if not owner.__module__.startswith(("torch.", "sagann."))]
    members: list[object] = [member for owner in owners for member in vars(owner).values()]
    for member in (*members, *vars(module).values()):
        function: Callable[..., Any] | None = getattr(member, "__func__", member)
        if not isinstance(function, FunctionType):
            continue
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:
                # It is not filled yet.
                continue
        for name in _global_names(function.__code__):
            yield name, function.__globals__.get(name)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _is_as(held: Any, saved: Any) -> bool:
    """Whether a container has the same items, not only equal ones."""
    if len(held) != len(saved):
        return False
    if isinstance(held, dict):
        return all(key in held and held[key] is value for key, value in saved.items())
    if isinstance(held, set):
        return set(map(id, held)) == set(map(id, saved))
    return all(mine is theirs for mine, theirs in zip(held, saved, strict=True))


def _put_back(held: Any, saved: Any) -> None:
    held.clear()
    if isinstance(held, (list, deque)):
        held.extend(saved)
    else:
        held.update(saved)
