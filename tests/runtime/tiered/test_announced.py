"""Announced batches: decided in their order, given once, and forgotten when they are withdrawn."""

from __future__ import annotations

import numpy as np

from sagann.runtime.tiered.announced import Announced
from sagann.tiering import LookAhead


def test_a_batch_that_is_asked_for_early_is_decided_after_those_before_it() -> None:
    cache = LookAhead(10, 1)
    announced = Announced(cache)
    for number, row in ((1, 4), (3, 5), (9, 4)):
        announced.add(number, np.array([row]))
    last = announced.place(9, announced.take(9))
    assert cache.num_announced == 0
    # Row 4 keeps its slot, because row 5 is not used again.
    assert last.is_resident.tolist() == [True]
    assert announced.place(3, announced.take(3)).slots.tolist() == [-1]
    assert announced.place(1, announced.take(1)).slots.tolist() == [0]


def test_a_batch_that_is_withdrawn_while_it_is_read_is_like_one_that_was_not_announced() -> None:
    cache = LookAhead(10, 2, np.array([4, 5]))
    announced = Announced(cache)
    announced.add(0, np.array([4, 7]))
    ids = announced.take(0)
    announced.withdraw()
    assert announced.place(0, ids).slots.tolist() == [0, -1]
    assert cache.owners.tolist() == [4, 5]
