"""What functions change is seen and put back, whatever they change it in."""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from sagann.saga.side_effects import taken_back


class Frozen(dict):
    """Cannot be written to as usual."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("frozen")


class Wrapping(dict):
    """Gives something else than it holds."""

    def __getitem__(self, key: Any) -> Any:
        return [super().__getitem__(key)]


class Gone:
    pass


CHANGES: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "list": ([1], lambda held: held.append(2)),
    "nested": ({"rows": [1]}, lambda held: held["rows"].append(2)),
    "dict": ({}, lambda held: held.update(a=1)),
    "defaultdict": (defaultdict(list), lambda held: held["a"]),
    "ordered": (OrderedDict(a=1), lambda held: held.popitem()),
    "set": ({1}, lambda held: held.add(2)),
    "deque": (deque([1, 2], maxlen=2), lambda held: held.append(3)),
    "frozen": (Frozen(a=1), lambda held: dict.__setitem__(held, "b", 2)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_containers_are_as_before(name: str) -> None:
    held, change = CHANGES[name]
    module = nn.Module()
    module.held = held
    before = repr(held)
    with taken_back(module) as changed:
        pass
    assert changed == []
    with taken_back(module) as changed:
        change(held)
        assert repr(held) != before
    assert len(changed) == 1
    assert changed[0].startswith("it changes 'held', a ")
    assert repr(held) == before
    assert module.held is held


def test_what_only_looks_like_a_container_is_left_alone() -> None:
    module, gone = nn.Module(), Gone()
    module.proxy, module.wrapping = weakref.proxy(gone), Wrapping(a=1)
    del gone
    with taken_back(module) as changed:
        pass
    assert changed == []
