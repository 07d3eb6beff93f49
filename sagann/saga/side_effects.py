"""Side effects: what a user's function changes besides tensors, seen and taken back.

Functions of layers and models run on made-up rows to be checked, and on fake ones to be traced. What they set or append then
is of no use to the user, and a program that was made of a trace does neither.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

_KINDS = (list, OrderedDict, dict, set, deque)
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
    the modules' own functions find in their closures and globals; not what functions that these call find there.

    Args:
        root: the module.
    Yields:
        What was changed, in words: filled when the block ends.
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
            # One by one: other threads may read the others meanwhile.
            for name, value in saved.items():
                if held.get(name, attributes) is not value:
                    changed.append(f"it {'sets' if name in held else 'deletes'} the attribute '{name}'")
                    held[name] = value
        for name, held, items in containers:
            if list(map(_identities, _items(held))) != list(map(_identities, items)):
                changed.append(f"it changes '{name}', a {type(held).__name__}")
                _put_back(held, items)


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
    # Of proxies, types are their own, whatever they stand for.
    base = _base(value)
    if base is None or id(value) in found or base.__len__(value) > _MOST_ITEMS:
        return
    found[id(value)] = name, value
    if depth > 1:
        for item in _items(value):
            _follow(name, item[-1], found, depth - 1)


def _seen_by_functions(module: nn.Module) -> Iterator[tuple[str, object]]:
    """What functions of the module's class, or in its attributes, may change outside of it, by name."""
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
                # It is not filled yet.
                continue
        for name in _global_names(function.__code__):
            yield name, function.__globals__.get(name)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _base(value: object) -> Any:
    """Of which kind a container is; None of anything else."""
    return next((kind for kind in _KINDS if issubclass(type(value), kind)), None)


def _items(held: Any) -> list[tuple[Any, ...]]:
    """A container's items, or pairs of keys and values, whatever its class makes of asking for them."""
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
