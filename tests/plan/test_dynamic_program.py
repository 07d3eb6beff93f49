"""The dynamic program finds the fewest bytes that can be tried, and never more than Belady's rule moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bench.papers.rivals import place_recent, place_uncached
from sagann.plan.dynamic_program import least_moved, place_by_program
from sagann.plan.gaps import Gaps, gaps_of, prices_of
from sagann.plan.residency import place
from sagann.plan.spec import verify
from sagann.plan.steps import Block, Move, Plan, Step
from tests.plan.schedules import Small, block, schedules, step


def tried(small: Small, budget: int) -> int:
    """The fewest bytes by trying, before each step, every fate of every block in memory."""

    @cache
    def least(number: int, there: frozenset[tuple[Block, bool]], outside: frozenset[Block]) -> float:
        if number == len(small.steps):
            return 0
        one, best = small.steps[number], float("inf")
        known = sorted(there, key=str)
        fates = [
            ["keep"]
            + (["drop"] if each not in one.blocks else [])
            + (["store", "store and drop"] if is_dirty else [])
            for each, is_dirty in known
        ]
        for fate in product(*fates):
            moved, stays, lies = 0, dict[Block, bool](), set(outside)
            for (each, is_dirty), what in zip(known, fate, strict=True):
                if "store" in what:
                    moved += small.sizes[each]
                    lies.add(each)
                if "drop" not in what:
                    stays[each] = is_dirty and "store" not in what
            missing = [each for each in one.reads if each not in stays]
            held = sum(small.sizes[each] for each in {*stays, *one.blocks}) + one.temporary_bytes
            if held > budget or any(each.whole not in lies for each in missing):
                continue
            moved += sum(small.sizes[each] for each in missing)
            stays |= dict.fromkeys(missing, False) | dict.fromkeys(one.writes, True)
            lies -= set(one.writes)
            later = least(number + 1, frozenset(stays.items()), frozenset(lies))
            best = min(best, moved + later)
        return best

    return int(least(0, frozenset(), small.initial))


@settings(max_examples=100, deadline=None)
@given(schedules(most_blocks=3, most_steps=6), st.integers(0, 12))
def test_without_limits_nothing_that_can_be_tried_moves_less(small: Small, more: int) -> None:
    budget = max(small.least_budget, 1) + more
    gaps = gaps_of(small.steps, small.bytes_of, budget)
    rival = place(small.steps, bytes_of=small.bytes_of, initial=small.initial, bounds=(0, 1), budget_bytes=budget)
    found = least_moved(gaps, prices_of(gaps, rival.moved_bytes), width=None, choices=None)
    assert found.moved_bytes == tried(small, budget)


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(0, 40), st.integers(0, 2))
def test_no_rival_moves_less_and_the_bound_holds(small: Small, more: int, lookahead: int) -> None:
    budget = max(small.least_budget, 1) + more
    plans = [
        policy(
            small.steps,
            bytes_of=small.bytes_of,
            initial=small.initial,
            bounds=(0, 1),
            budget_bytes=budget,
            lookahead=lookahead,
        )
        for policy in (place_by_program, place, place_recent, place_uncached)
    ]
    for plan in plans:
        verify(plan, small.steps)
    moved, *others = (plan.moved_bytes for plan in plans)
    assert prices_of(gaps_of(small.steps, small.bytes_of, budget), moved).least_bytes <= moved <= min(others)


def test_a_block_that_must_be_stored_stays_before_one_that_need_not() -> None:
    # Block 0 is made, block 1 is loaded; room is for one of them. Belady's rule evicts block 0, which is used last.
    steps = [step([1], [0]), step([2], temporary=0), step([1]), step([0])]
    given_ = {
        "bytes_of": lambda _: 10,
        "initial": [block(1), block(2)],
        "bounds": (0, 1),
        "budget_bytes": 20,
        "lookahead": 0,
    }
    belady, found = place(steps, **given_), place_by_program(steps, **given_)
    assert (belady.loaded_bytes, belady.stored_bytes) == (30, 10)
    assert (found.loaded_bytes, found.stored_bytes) == (30, 0)


@pytest.mark.parametrize("policy", [place, place_by_program])
def test_loads_come_ahead_where_the_plan_may_do_so(policy: Callable[..., Plan]) -> None:
    turn = Step("return", 0, 0)

    def loads_before(number: int, steps: Sequence[Step], budget_bytes: int, lookahead: int) -> list[Block]:
        plan = policy(
            steps,
            bytes_of=lambda _: 10,
            initial=map(block, range(4)),
            bounds=(0, 1),
            budget_bytes=budget_bytes,
            lookahead=lookahead,
        )
        before = plan.operations[: plan.operations.index(steps[number])]
        return [each.block for each in before if isinstance(each, Move) and each.kind == "load"]

    two = [step([0], [], 5), step([1], [], 5)]
    assert block(1) in loads_before(0, two, 25, 2)
    assert block(1) not in loads_before(0, two, 24, 2)
    assert block(1) not in loads_before(0, two, 25, 0)
    # Not across the return to the caller, nor a content that is made anew before it is read.
    assert block(1) not in loads_before(1, [step([0]), turn, step([1])], 100, 2)
    again = [step([0]), step([1]), step([], [0]), step([1]), step([2]), step([0])]
    assert loads_before(5, again, 100, 2) == [block(0), block(1), block(2)]


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
    return gaps.compulsory_bytes + best


@settings(max_examples=100, deadline=None)
@given(schedules(most_blocks=4, most_steps=9), st.integers(0, 15))
def test_no_choice_of_gaps_moves_less_than_the_bound(small: Small, more: int) -> None:
    gaps = gaps_of(small.steps, small.bytes_of, max(small.least_budget, 1) + more)
    best = fewest(gaps)
    prices = prices_of(gaps, best)
    assert gaps.compulsory_bytes <= prices.least_bytes <= best
    assert (np.diff(prices.until) >= 0).all()
