"""Gap moves: a decision about gaps becomes a plan that keeps every rule, and copies no more than was decided."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from hypothesis import given, settings, strategies as st

from sagann.plan.device_memory import DeviceMemory
from sagann.plan.gap_moves import write_moves
from sagann.plan.gaps import gaps_of
from sagann.plan.spec import verify
from sagann.plan.steps import Block, Move, Plan, Step
from tests.plan.schedules import Small, block, schedules, step


def planned(
    steps: Sequence[Step], initial: Sequence[int], budget_bytes: int, leaving: Collection[int], *, ahead: bool
) -> Plan:
    memory = DeviceMemory(lambda _: 10, map(block, initial), budget_bytes)
    write_moves(memory, steps, gaps_of(steps, lambda _: 10, budget_bytes), leaving, ahead=ahead)
    plan = memory.plan((0, 1), "dp", ahead=ahead, stores_early=True)
    verify(plan, steps)
    return plan


def moves(plan: Plan, kind: str) -> list[Block]:
    return [each.block for each in plan.operations if isinstance(each, Move) and each.kind == kind]


STEPS = [step([number]) for number in (0, 1, 2, 0, 1, 2)]


def test_what_is_kept_is_loaded_once() -> None:
    # The gap of block 0 is kept. Block 1 leaves for it. Block 2 may leave, but at its next use its room is not needed yet.
    loaded = moves(planned(STEPS, range(3), 20, [1, 2], ahead=False), "load")
    assert loaded == [block(number) for number in (0, 1, 2, 1)]


def test_what_may_leave_stays_while_there_is_room() -> None:
    assert len(moves(planned(STEPS, range(3), 30, [0, 1, 2], ahead=False), "load")) == 3


def test_blocks_are_loaded_ahead_into_free_room() -> None:
    for budget, ahead in ((20, True), (15, False)):
        plan = planned([step([0]), step([1])], range(2), budget, [], ahead=True)
        first = plan.operations[: plan.operations.index(step([0]))]
        assert (Move("load", block(1), 10) in first) == ahead
    plan = planned([step([0]), step([1])], range(2), 20, [], ahead=False)
    assert Move("load", block(1), 10) not in plan.operations[: plan.operations.index(step([0]))]


def test_nothing_is_loaded_ahead_across_the_return_to_the_caller() -> None:
    turn = Step("return", 0, 0)
    plan = planned([step([0]), turn, step([1])], range(2), 100, [], ahead=True)
    assert plan.operations.index(Move("load", block(1), 10)) > plan.operations.index(turn)


def test_an_older_content_is_not_loaded_ahead() -> None:
    # Block 0 is made anew before it is read: it lies outside, but not as it will be read.
    steps = [step([0]), step([1]), step([], [0]), step([1]), step([2]), step([0])]
    plan = planned(steps, range(3), 100, [], ahead=True)
    assert moves(plan, "load") == [block(0), block(1), block(2)]


@settings(max_examples=150, deadline=None)
@given(schedules(), st.integers(0, 40), st.booleans())
def test_any_decision_that_fits_becomes_a_plan(small: Small, more: int, ahead: bool) -> None:
    budget = max(small.least_budget, 1) + more
    gaps = gaps_of(small.steps, small.bytes_of, budget)
    # As many gaps as fit, the last ones first.
    kept = np.zeros(len(gaps))
    for gap in reversed(range(len(gaps))):
        kept[gap] = 1
        if (gaps.over(gaps.num_bytes * kept) > gaps.room_bytes).any():
            kept[gap] = 0
    leaving = np.flatnonzero(kept == 0).tolist()
    contents = set(gaps.content[leaving].tolist())
    decided = gaps.compulsory_bytes + int(gaps.num_bytes[leaving].sum() + gaps.store_bytes[list(contents)].sum())
    memory = DeviceMemory(small.bytes_of, small.initial, budget)
    write_moves(memory, small.steps, gaps, leaving, ahead=ahead)
    plan = memory.plan((0, 1), "dp", ahead=ahead, stores_early=True)
    verify(plan, small.steps)
    assert plan.moved_bytes <= decided
