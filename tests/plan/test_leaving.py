"""Blocks that are dropped while they are being stored."""

from __future__ import annotations

from sagann.plan.leaving import Leaving


def test_a_load_stands_for_the_room_of_what_leaves_before_it() -> None:
    leaving = Leaving[int]()
    leaving.drop(10, 1)
    assert leaving.excess_bytes == 10
    assert leaving.load(30) == [1]
    assert leaving.excess_bytes == 0
    leaving.drop(25, 2)
    # Once the first is stored, the load begins: the second one's room is not the load's.
    assert leaving.excess_bytes == 25
    assert leaving.load(5) == [1, 2]
    assert leaving.excess_bytes == 20


def test_what_has_ended_is_forgotten_in_order() -> None:
    leaving = Leaving[int]()
    for store in (1, 2):
        leaving.drop(10, store)
        leaving.load(4)
    leaving.settle(lambda store: store == 2)
    assert leaving.stores == [1, 2]
    leaving.settle(lambda store: store == 1)
    assert leaving.stores == [2]
    leaving.settle(lambda store: True)
    assert leaving.stores == []
    assert leaving.load(10) == []
    assert leaving.excess_bytes == 0
