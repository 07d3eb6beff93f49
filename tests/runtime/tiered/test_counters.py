"""Counters: several threads add to them, and nothing is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sagann.runtime.tiered.counters import Counters, TierCounts, Traffic
from sagann.storage.scattered import Reads


def test_several_threads_add() -> None:
    counters = Counters(row_bytes=8)

    def add(_: int) -> None:
        for _ in range(1000):
            counters.add(hot=3, cold=1, reads=Reads(num_reads=2, num_bytes=100))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert counters.traffic() == Traffic(
        hot=TierCounts(rows=12_000, num_bytes=96_000),
        cold=TierCounts(rows=4000, num_bytes=32_000),
        cold_reads=8000,
        cold_read_bytes=400_000,
    )


def test_before_the_first_row_there_are_no_hits() -> None:
    traffic = Counters(row_bytes=8).traffic()
    assert (traffic.rows, traffic.hit_rate) == (0, 0.0)


def test_a_difference_is_what_was_given_meanwhile() -> None:
    counters = Counters(row_bytes=4)
    counters.add(hot=1, cold=2, reads=Reads(num_reads=2, num_bytes=9))
    before = counters.traffic()
    counters.add(hot=10, cold=20, reads=Reads(num_reads=5, num_bytes=80))
    assert counters.traffic() - before == Traffic(
        hot=TierCounts(rows=10, num_bytes=40),
        cold=TierCounts(rows=20, num_bytes=80),
        cold_reads=5,
        cold_read_bytes=80,
    )


def test_counts_as_json_and_back() -> None:
    counters = Counters(row_bytes=4)
    counters.add(hot=10, cold=20, reads=Reads(num_reads=5, num_bytes=80))
    found = counters.traffic().to_json()
    assert found == {
        "hot_rows": 10,
        "hot_bytes": 40,
        "cold_rows": 20,
        "cold_bytes": 80,
        "cold_reads": 5,
        "cold_read_bytes": 80,
    }
    assert Traffic.from_json({**found, "loss": 0.5}) == counters.traffic()
