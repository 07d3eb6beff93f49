"""Look-ahead against every possible policy, and against Belady's rule in plain Python."""

from __future__ import annotations

from collections import deque
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sagann.tiering import LookAhead
from sagann.tiering.cache import Announced
from tests.tiering.naive_caches import NaiveLookAhead, least_reads

BATCHES = st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=7)


def batch_of(ids: list[int]) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


def num_read(cache: LookAhead, batch: Announced) -> int:
    """Place the next batch; the number of rows that are read for it, each once."""
    resident = set(cache.owners.tolist())
    cache.slots_of(batch)
    return len(set(batch.ids.tolist()) - resident)


@given(BATCHES, st.integers(0, 4), st.permutations(range(7)), st.integers(0, 7))
@settings(max_examples=100)
def test_no_policy_reads_fewer_rows_for_the_batches_of_a_window(
    batches: list[list[int]], num_slots: int, order: list[int], num_hottest: int
) -> None:
    hottest = np.array(order[:num_hottest], dtype=np.int64)
    cache = LookAhead(7, num_slots, hottest)
    announced = [cache.announce(batch_of(batch)) for batch in batches]
    reads = sum(num_read(cache, batch) for batch in announced)
    assert reads == least_reads(batches, num_slots, order[: min(num_hottest, num_slots)])


@given(st.integers(0, 10_000), st.integers(0, 12), st.integers(1, 6))
@settings(max_examples=60)
def test_a_window_that_moves_on_follows_beladys_rule(seed: int, num_slots: int, window: int) -> None:
    generator = np.random.default_rng(seed)
    batches = [generator.integers(30, size=generator.integers(0, 12)).tolist() for _ in range(40)]
    cache, naive = LookAhead(30, num_slots), NaiveLookAhead(num_slots)
    ahead, announced = iter(batches), deque[Announced]()
    for batch in batches:
        while len(naive.window) < window and (following := next(ahead, None)) is not None:
            announced.append(cache.announce(batch_of(following)))
            naive.window.append(following)
        resident = set(cache.owners.tolist()) - {-1}
        assert num_read(cache, announced.popleft()) == len(set(batch) - resident)
        # Rows of one urgency may stand in for each other, so the naive cache goes on from the same rows.
        naive.kept = resident
        naive.num_resident()
        kept = set(cache.owners.tolist()) - {-1}
        assert sorted(map(naive.urgency, kept)) == sorted(map(naive.urgency, naive.kept))


def test_without_a_window_the_hottest_rows_stay() -> None:
    num_rows, num_slots = 1000, 64
    hottest = np.random.default_rng(0).permutation(num_rows)
    cache = LookAhead(num_rows, num_slots, hottest)
    for seed in range(20):
        cache.slots_of(cache.announce(np.random.default_rng(seed).integers(num_rows, size=100)))
    assert sorted(cache.owners.tolist()) == sorted(hottest[:num_slots].tolist())


def test_of_rows_without_a_use_the_coldest_leaves_first() -> None:
    hottest = np.arange(200)
    cache = LookAhead(200, 100, hottest)
    # Batches 100, 101, ... are used twice, so each needs a slot.
    batches = [cache.announce(np.array([row])) for row in [*range(100, 150), *range(100, 150)]]
    cache.slots_of(batches[49])
    # Only levels are told apart: two of 64 have 6 or 7 rows here.
    assert set(range(44)) <= set(cache.owners.tolist())


def test_rows_that_were_not_announced_leave_the_cache_alone() -> None:
    cache = LookAhead(10, 2, np.array([4, 5]))
    assert cache.place(np.array([5, 6])).tolist() == [1, -1]
    assert cache.owners.tolist() == [4, 5]


def test_positions_and_numbers_begin_anew_after_2_to_the_31(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [np.random.default_rng(seed).integers(50, size=20) for seed in range(60)]

    def slots(cache: LookAhead) -> list[list[int]]:
        announced = deque(map(cache.announce, batches[:10]))
        found = []
        for batch in [*batches[10:], *[None] * 10]:
            found.append(cache.slots_of(announced.popleft()).tolist())
            if batch is not None:
                announced.append(cache.announce(batch))
        return found

    late = LookAhead(50, 10)
    late._first_access, late._first_batch = 2**31 - 300, 2**31 - 15
    assert slots(late) == slots(LookAhead(50, 10))


def test_batches_that_were_dropped_leave_the_window() -> None:
    cache = LookAhead(10, 2)
    first, *others = (cache.announce(np.array([row, 9])) for row in range(5))
    dropped = [ref(batch.ids) for batch in others]
    del others
    cache.announce(np.array([5]))
    assert all(ids() is not None for ids in dropped)
    assert cache.slots_of(first).tolist() == [0, 1]
    cache.announce(np.array([6]))
    assert all(ids() is None for ids in dropped)
