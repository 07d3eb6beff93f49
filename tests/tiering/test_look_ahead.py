"""Look-ahead against every possible policy, and against Belady's rule in plain Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sagann.tiering import CACHES, Cache, LookAhead
from sagann.tiering.look_ahead import Announced


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


class NaiveLookAhead:
    """Belady's rule for the announced batches: after each batch, the rows with the nearest next use stay."""

    def __init__(self, num_slots: int, hottest: Sequence[int] = (), levels: dict[int, int] | None = None) -> None:
        self.num_slots = num_slots
        self.levels = levels or {}
        self.kept = set(hottest[:num_slots])
        self.window: list[Sequence[int]] = []

    def num_resident(self) -> int:
        """Number of rows of the oldest batch that are resident, each counted once; the batch leaves the window."""
        batch = set(self.window.pop(0))
        found = len(batch & self.kept)
        # Only how urgent the rows are that stay is determined, not which of equally urgent rows.
        self.kept = set(sorted(self.kept | batch, key=self.urgency)[: self.num_slots])
        return found

    def urgency(self, row: int) -> tuple[int, int]:
        """Batches until the next use, and the level of heat among rows without one."""
        uses = [number for number, batch in enumerate(self.window) if row in batch]
        return (uses[0], 0) if uses else (len(self.window), self.levels.get(row, 0))


def least_reads(batches: Sequence[Iterable[int]], num_slots: int, kept: Iterable[int] = ()) -> int:
    """The least number of rows that any policy reads for some batches, by trying every set of rows after each batch."""
    sets = [frozenset(batch) for batch in batches]

    @cache
    def reads(number: int, held: frozenset[int]) -> int:
        if number == len(sets):
            return 0
        together = held | sets[number]
        count = min(num_slots, len(together))
        later = min(reads(number + 1, frozenset(some)) for some in combinations(sorted(together), count))
        return len(sets[number] - held) + later

    return reads(0, frozenset(kept))


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
