"""The lock of models, and what functions change, which is seen and put back."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch import nn

from sagann.saga.shared_lock import SharedLock
from sagann.saga.side_effects import taken_back
from tests.forks import run_fresh

LONG_S = 60.0
SHORT_S = 0.2


def test_threads_read_side_by_side() -> None:
    lock, both = SharedLock(), threading.Barrier(2)

    def read() -> None:
        with lock.reading():
            both.wait(LONG_S)

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(read) for _ in range(2)]:
            each.result()


def test_a_change_waits_for_readers_and_later_readers_wait_for_it() -> None:
    lock, order = SharedLock(), list[str]()
    is_waiting, may_end = threading.Event(), threading.Event()

    def change() -> None:
        is_waiting.set()
        with lock.changing():
            order.append("change")

    def read() -> None:
        with lock.reading():
            order.append("later reader")

    with ThreadPoolExecutor(2) as threads:
        with lock.reading():
            changed = threads.submit(change)
            is_waiting.wait(LONG_S)
            may_end.wait(SHORT_S)
            later = threads.submit(read)
            may_end.wait(SHORT_S)
            order.append("first reader")
        changed.result(LONG_S)
        later.result(LONG_S)
    assert order == ["first reader", "change", "later reader"]


def test_two_readers_that_go_on_to_change_do_not_wait_for_each_other() -> None:
    lock, both, changes = SharedLock(), threading.Barrier(2), list[int]()

    def read_then_change(number: int) -> None:
        with lock.reading():
            both.wait(LONG_S)
            with lock.changing():
                changes.append(number)
            with lock.reading():
                both.wait(LONG_S)

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(read_then_change, number) for number in range(2)]:
            each.result(2 * LONG_S)
    assert sorted(changes) == [0, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_not_held_up_by_threads_that_it_has_not() -> None:
    # The one thread beside the main thread waits, and holds nothing but this lock.
    program = """
import os, threading, warnings
from sagann.saga.shared_lock import SharedLock

warnings.simplefilter("ignore", DeprecationWarning)
lock, is_held, may_end = SharedLock(), threading.Event(), threading.Event()

def hold():
    with lock.changing():
        is_held.set()
        may_end.wait()

threading.Thread(target=hold).start()
is_held.wait()
child = os.fork()
if not child:
    with lock.reading():
        os._exit(7)
_, status = os.waitpid(child, 0)
may_end.set()
assert os.waitstatus_to_exitcode(status) == 7
"""
    run_fresh(program)


CHANGES: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "list": ([1], lambda held: held.append(2)),
    "nested": ({"rows": [1]}, lambda held: held["rows"].append(2)),
    "dict": ({}, lambda held: held.update(a=1)),
    "defaultdict": (defaultdict(list), lambda held: held["a"]),
    "ordered": (OrderedDict(a=1), lambda held: held.popitem()),
    "set": ({1}, lambda held: held.add(2)),
    "deque": (deque([1, 2], maxlen=2), lambda held: held.append(3)),
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
