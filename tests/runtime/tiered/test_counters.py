"""Counters of what tiers give."""

from __future__ import annotations

from sagann.runtime.tiered.counters import Counters, TierCounts, Traffic
from sagann.storage.scattered import Reads


def test_a_difference_is_what_was_given_meanwhile_also_as_json() -> None:
    counters = Counters(row_bytes=4)
    assert (counters.traffic().rows, counters.traffic().hit_rate) == (0, 0.0)
    counters.add(hot=1, cold=2, reads=Reads(num_reads=2, num_bytes=9))
    before = counters.traffic()
    counters.add(hot=10, cold=20, reads=Reads(num_reads=5, num_bytes=80))
    gained = counters.traffic() - before
    assert gained == Traffic(
        hot=TierCounts(rows=10, num_bytes=40),
        cold=TierCounts(rows=20, num_bytes=80),
        cold_reads=5,
        cold_read_bytes=80,
    )
    found = gained.to_json()
    assert found == {
        "hot_rows": 10,
        "hot_bytes": 40,
        "cold_rows": 20,
        "cold_bytes": 80,
        "cold_reads": 5,
        "cold_read_bytes": 80,
    }
