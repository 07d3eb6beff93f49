"""Gaps: what a schedule leaves to decide, and a bound that no decision beats."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sagann.plan.gaps import Gaps, Reload, gaps_of, prices_of
from sagann.plan.steps import UNLIMITED
from tests.plan.schedules import Small, block, schedules, step


def found_in(gaps: Gaps) -> list[tuple[int, int, int]]:
    """Block, step before and step after each gap."""
    return [
        (each.interval, first, later)
        for each, first, later in zip(gaps.blocks, gaps.first.tolist(), gaps.next.tolist(), strict=True)
    ]


def fewest(gaps: Gaps) -> int:
    """The fewest bytes by trying every set of gaps that fits."""
    best = None
    every = range(len(gaps))
    for leaving in chain.from_iterable(combinations(every, count) for count in range(len(gaps) + 1)):
        kept = np.ones(len(gaps))
        kept[list(leaving)] = 0
        if (gaps.over(gaps.num_bytes * kept) <= gaps.room_bytes).all():
            contents = {int(gaps.content[gap]) for gap in leaving}
            moved = sum(int(gaps.num_bytes[gap]) for gap in leaving)
            moved += sum(int(gaps.store_bytes[content]) for content in contents)
            best = moved if best is None else min(best, moved)
    assert best is not None
    return gaps.compulsory_bytes + best


def test_a_gap_lies_between_two_uses_with_steps_between_them() -> None:
    steps = [step([0], [1]), step([0]), step([2], temporary=3), step([0, 1])]
    gaps = gaps_of(steps, lambda _: 10, 40)
    assert found_in(gaps) == [(1, 0, 3), (0, 1, 3)]
    assert gaps.room_bytes.tolist() == [20, 30, 27, 20]
    # What is made must be stored where it leaves; what was loaded need not.
    assert gaps.store_bytes[gaps.content].tolist() == [10, 0]
    assert gaps.compulsory_bytes == 20
    assert gaps.last == {(block(0), 3), (block(1), 3), (block(2), 2)}
    assert gaps.reloads == [
        Reload(0, -1, block(0)),
        Reload(2, -1, block(2)),
        Reload(3, 1, block(0)),
        Reload(3, 0, block(1)),
    ]
    assert gaps.over(gaps.num_bytes).tolist() == [0, 10, 20, 0]


def test_a_block_that_is_made_anew_has_no_gap() -> None:
    gaps = gaps_of([step([0]), step([1]), step([], [0]), step([1]), step([0])], lambda _: 10, 100)
    assert found_in(gaps) == [(1, 1, 3), (0, 2, 4)]
    assert (block(0), 0) in gaps.last


def test_a_gap_that_fits_beside_nothing_is_compulsory() -> None:
    steps = [step([], [0]), step([1], temporary=1), step([0]), step([1]), step([0])]
    gaps = gaps_of(steps, lambda _: 10, 20)
    assert gaps.never_kept == {(block(0), 0)}
    # Block 1 is loaded, block 0 stored and loaded. A second time it leaves without a store.
    assert gaps.compulsory_bytes == 30
    assert found_in(gaps) == [(1, 1, 3), (0, 2, 4)]
    assert not gaps.store_bytes.any()


def test_what_rows_are_picked_from_is_stored_anyway() -> None:
    gaps = gaps_of([step([], [0]), step([], picked=[0]), step([0])], lambda each: 4 if each.needed_by else 10, 100)
    assert gaps.compulsory_bytes == 14
    assert not gaps.store_bytes.any()
    assert found_in(gaps) == [(0, 0, 2)]


def test_with_room_for_all_the_bound_is_what_must_be_moved() -> None:
    steps = [step([0]), step([1]), step([0])]
    for budget in (20, UNLIMITED):
        gaps = gaps_of(steps, lambda _: 10, budget)
        assert prices_of(gaps, 30).least_bytes == gaps.compulsory_bytes == 20


def test_without_gaps_nothing_is_left_to_decide() -> None:
    gaps = gaps_of([step([0]), step([0])], lambda _: 10, 10)
    assert len(gaps) == 0
    assert prices_of(gaps, 10).least_bytes == 10


def test_the_bound_of_blocks_of_one_size_is_what_the_best_policy_moves() -> None:
    # Room for one block beside that of the step: of two gaps that overlap, one is kept.
    steps = [step([number]) for number in (0, 1, 2, 0, 1, 2)]
    gaps = gaps_of(steps, lambda _: 10, 20)
    assert fewest(gaps) == 40
    assert prices_of(gaps, 60).least_bytes == pytest.approx(40, abs=1)


@settings(max_examples=100, deadline=None)
@given(schedules(most_blocks=4, most_steps=9), st.integers(0, 15))
def test_no_choice_of_gaps_moves_less_than_the_bound(small: Small, more: int) -> None:
    gaps = gaps_of(small.steps, small.bytes_of, max(small.least_budget, 1) + more)
    best = fewest(gaps)
    prices = prices_of(gaps, best)
    assert gaps.compulsory_bytes <= prices.least_bytes <= best
    assert (np.diff(prices.until) >= 0).all()
