"""S3-FIFO against its definition in plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from sagann.tiering import S3Fifo
from tests.tiering.naive_caches import NaiveS3Fifo


@given(st.integers(0, 10_000), st.integers(0, 45), st.sampled_from([0, 5, 100]))
@settings(max_examples=60)
def test_the_same_rows_are_resident_as_in_plain_python(seed: int, num_slots: int, num_hottest: int) -> None:
    generator = np.random.default_rng(seed)
    num_rows = 100
    hottest = generator.permutation(num_rows)[:num_hottest]
    cache, naive = S3Fifo(num_rows, num_slots, hottest), NaiveS3Fifo(num_slots, hottest.tolist())
    for _ in range(20):
        # Some rows are asked for far more often than others, and some twice in a batch.
        ids = (num_rows * generator.random(generator.integers(0, 60)) ** 2.5).astype(np.int64)
        decision = cache.place(ids)
        assert decision.is_resident.tolist() == naive.place(ids.tolist())
        assert set(cache.owners.tolist()) - {-1} == set(naive.uses)
        for row, slot in zip(ids.tolist(), decision.slots.tolist(), strict=True):
            assert (slot >= 0) == (num_slots > 0)
            if row in naive.uses:
                assert cache.owners[slot] == row or (ids == row).sum() > 1


def test_rows_that_are_read_once_leave_hot_rows_in_place() -> None:
    cache = S3Fifo(10_000, 100, np.arange(100))
    cache.place(np.arange(90))
    for first in range(100, 10_000, 100):
        cache.place(np.arange(first, first + 100))
        cache.place(np.arange(90))
    assert cache.place(np.arange(90)).is_resident.all()
