"""Gaps: what a schedule leaves to decide, and a bound that no decision beats."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sagann.plan.gaps import Gaps, gaps_of, prices_of
from tests.plan.schedules import Small, schedules, step


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
