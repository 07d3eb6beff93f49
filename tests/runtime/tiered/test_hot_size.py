"""Sizes of the hot tier, and counters of what tiers give."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sagann import free_space
from sagann.errors import InputError
from sagann.free_space import Memory, Room
from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.runtime.tiered.hot_size import HotSize, hot_rows

ROWS, ROW_BYTES = 1000, 64


def tables(slots: int) -> int:
    return 4 * ROWS + 12 * slots + (1 if slots % 3 else 0)


def rows_of(hot: HotSize) -> int:
    return hot_rows(hot, num_rows=ROWS, row_bytes=ROW_BYTES, state_bytes=tables)


def free(monkeypatch: pytest.MonkeyPatch, usable_bytes: int | None) -> None:
    found = Memory(total_bytes=None, available_bytes=usable_bytes, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr(free_space, "memory", lambda: found)


@given(st.integers(4000, 100_000))
def test_a_size_in_bytes_is_that_of_rows_and_tables(num_bytes: int) -> None:
    count = rows_of(num_bytes)
    assert count * ROW_BYTES + tables(count) <= num_bytes
    assert count == ROWS or (count + 1) * ROW_BYTES + tables(count + 1) > num_bytes - 1


@pytest.mark.parametrize(
    ("hot", "expected"),
    [
        (0.1, 100),
        (" 12.5 % ", 125),
        (1.0, 1000),
        ("0", 0),
        (".5", 500),
        ("1MiB", 1000),
        ("4000B", 0),
    ],
)
def test_texts_and_parts(hot: HotSize, expected: int) -> None:
    assert rows_of(hot) == expected


def test_auto_takes_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 40_000)
    assert rows_of("auto") == rows_of(20_000)
    free(monkeypatch, None)
    with pytest.raises(InputError, match=r"free memory is unknown: .* \(in hot='auto'\)\. Pass a size, as"):
        rows_of("auto")


@pytest.mark.parametrize("hot", ["50%", 40_000])
def test_what_is_not_free_is_refused(monkeypatch: pytest.MonkeyPatch, hot: HotSize) -> None:
    free(monkeypatch, 30_000)
    message = (
        r"the work does not fit memory: at least .* are needed, 29.3 KiB are free \(in hot=.*\)\. Choose a smaller"
    )
    with pytest.raises(InputError, match=message):
        rows_of(hot)


def test_a_size_beyond_all_memory_is_refused_although_the_rows_would_fit() -> None:
    with pytest.raises(InputError) as caught:
        rows_of("99999999GiB")
    assert str(caught.value).startswith("hot tier is larger than memory: 97656.2 TiB, there are ")
    assert str(caught.value).endswith(
        " in all (in hot='99999999GiB'). Choose a smaller hot tier, or 100% for all rows."
    )


def test_a_tier_in_the_memory_of_a_device() -> None:
    room = Room(name="the memory of cuda:1", total_bytes=50_000, free_bytes=30_000)

    def on_device(hot: HotSize) -> int:
        return hot_rows(hot, num_rows=ROWS, row_bytes=ROW_BYTES, state_bytes=tables, room=room)

    assert on_device("auto") == rows_of(15_000)
    with pytest.raises(
        InputError, match=r"the work does not fit the memory of cuda:1: at least .* 29.3 KiB are free"
    ):
        on_device("40kB")
    with pytest.raises(
        InputError, match=r"hot tier is larger than the memory of cuda:1: 58.6 KiB, there are 48.8 KiB"
    ):
        on_device(60_000)


@pytest.mark.parametrize(
    ("hot", "message"),
    [
        (3999, r"smaller than its tables: 3.9 KiB, but tables of 1000 rows take 3.9 KiB \(in hot=3999\)"),
        (1.5, r"part out of range: 1.5, expected 0.0 to 1.0, or 0% to 100% \(in hot\)"),
        (float("nan"), "part out of range: nan"),
        ("much", r"size is not understood: 'much' \(in hot\)"),
        ("-1%", r"part out of range: '-1%', .* Give a size as 2GiB, a part of the rows as 10% or 0.1, or"),
        ("99999999999TiB", r"size is out of range: .* Give a size as 2GiB, a part of the rows as 10%"),
        (-1, r"bytes is out of range: -1"),
        (None, "argument has the wrong type: None, expected int or float or str"),
    ],
)
def test_sizes_that_are_refused(hot: HotSize, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rows_of(hot)


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
