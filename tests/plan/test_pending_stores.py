"""Blocks that are dropped while they are being stored."""

from __future__ import annotations

from sagann.plan.pending_stores import PendingStores


def test_a_load_stands_for_the_room_of_what_leaves_before_it() -> None:
    pending = PendingStores[int]()
    pending.drop(10, 1)
    assert pending.excess_bytes == 10
    assert pending.load(30) == [1]
    assert pending.excess_bytes == 0
    pending.drop(25, 2)
    # Once the first is stored, the load begins: the second one's room is not the load's.
    assert pending.excess_bytes == 25
    assert pending.load(5) == [1, 2]
    assert pending.excess_bytes == 20


def test_what_has_ended_is_forgotten_in_order() -> None:
    pending = PendingStores[int]()
    for store in (1, 2):
        pending.drop(10, store)
        pending.load(4)
    pending.settle(lambda store: store == 2)
    assert pending.stores == [1, 2]
    pending.settle(lambda store: store == 1)
    assert pending.stores == [2]
    pending.settle(lambda store: True)
    assert pending.stores == []
    assert pending.load(10) == []
    assert pending.excess_bytes == 0
