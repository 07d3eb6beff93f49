"""Caches of hot rows: which rows they hold, and what they read."""

from __future__ import annotations

import numpy as np
import pytest

from sagann.tiering import CACHES, Cache


def table_bytes(cache: Cache) -> int:
    """Bytes of all arrays of a cache that do not grow with a window."""
    known = {**vars(cache), "_next_uses": None}.values()
    arrays = [*known, *getattr(cache, "_tables", ())]
    return sum({id(array): array.nbytes for array in arrays if isinstance(array, np.ndarray)}.values())


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("has_order", [True, False])
@pytest.mark.parametrize(("num_rows", "num_slots"), [(1, 1), (1000, 0), (1000, 100)])
def test_a_cache_takes_the_memory_that_it_states(name: str, has_order: bool, num_rows: int, num_slots: int) -> None:
    made = CACHES[name](num_rows, num_slots, np.arange(num_rows)[::-1] if has_order else None)
    assert CACHES[name].state_bytes(num_rows, num_slots, has_order=has_order) == table_bytes(made)


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_begins_with_the_hottest_rows(name: str) -> None:
    cache = CACHES[name](50, 10, np.arange(49, -1, -1))
    assert sorted(cache.owners.tolist()) == list(range(40, 50))
    assert (cache.owners[cache.place(np.arange(40, 50))] == np.arange(40, 50)).all()
