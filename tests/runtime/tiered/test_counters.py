"""Counters of what tiers give."""

from __future__ import annotations

from sagann.runtime.tiered.counters import TierCounts, Traffic


def test_a_difference_is_what_was_given_meanwhile_also_as_json() -> None:
    assert (Traffic().rows, Traffic().hit_rate) == (0, 0.0)
    before = Traffic(hot=TierCounts.of(1, 4), cold=TierCounts.of(2, 4), cold_reads=2, cold_read_bytes=9)
    gained = Traffic(hot=TierCounts.of(10, 4), cold=TierCounts.of(20, 4), cold_reads=5, cold_read_bytes=80)
    assert (before + gained) - before == gained
    assert gained.to_json() == {
        "hot_rows": 10,
        "hot_bytes": 40,
        "cold_rows": 20,
        "cold_bytes": 80,
        "cold_reads": 5,
        "cold_read_bytes": 80,
    }
