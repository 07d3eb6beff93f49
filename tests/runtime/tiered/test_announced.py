"""Announced batches: decided in their order, given once, and forgotten when they are withdrawn."""

from __future__ import annotations

import numpy as np

from sagann.runtime.tiered.announced import Announced
from sagann.tiering import LookAhead


def test_a_batch_that_is_asked_for_early_is_decided_after_those_before_it() -> None:
    cache = LookAhead(10, 1)
    announced = Announced(cache)
    first, second, third = (announced.add(np.array([row])) for row in (4, 5, 4))
    announced.take(third)
    # Row 4 keeps its slot, because row 5 is not used again.
    assert announced.place(third).is_resident.tolist() == [True]
    assert cache.num_announced == 0
    announced.take(second), announced.take(first)
    assert announced.place(second).slots.tolist() == [-1]
    assert announced.place(first).slots.tolist() == [0]


def test_a_batch_whose_announcement_is_dropped_leaves_the_window() -> None:
    cache = LookAhead(10, 1)
    announced = Announced(cache)
    first, second, third = (announced.add(np.array([row])) for row in (4, 7, 9))
    fourth = announced.add(np.array([4]))
    assert cache.num_announced == 4
    del second
    fifth = announced.add(np.array([7]))
    assert cache.num_announced == 4
    del third
    # Row 4 is kept for the fourth batch.
    assert announced.place(first).slots.tolist() == [0]
    assert cache.num_announced == 2
    assert announced.place(fifth).is_resident.tolist() == [False]
    assert announced.place(fourth).is_resident.tolist() == [True]


def test_an_announcement_that_was_decided_for_may_be_dropped() -> None:
    cache = LookAhead(10, 1)
    announced = Announced(cache)
    first, second = announced.add(np.array([4])), announced.add(np.array([4]))
    announced.place(second)
    del first, second
    announced.place(announced.add(np.array([4])))
    assert cache.num_announced == 0
