"""Static placement: the hottest rows have slots, whatever is asked for."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from sagann.tiering import Static


@given(st.integers(0, 1000), st.integers(1, 50), st.integers(0, 60))
def test_the_hottest_rows_have_the_first_slots(seed: int, num_rows: int, num_slots: int) -> None:
    generator = np.random.default_rng(seed)
    hottest = generator.permutation(num_rows)[: generator.integers(0, num_rows + 1)]
    cache = Static(num_rows, num_slots, hottest)
    expected = {row: slot for slot, row in enumerate(hottest[:num_slots].tolist())}
    ids = generator.integers(num_rows, size=100)
    for _ in range(2):
        decision = cache.place(ids)
        assert decision.slots.tolist() == [expected.get(row, -1) for row in ids.tolist()]
        assert decision.is_resident.tolist() == [row in expected for row in ids.tolist()]
    assert cache.owners.tolist() == [*expected, *[-1] * (num_slots - len(expected))]
