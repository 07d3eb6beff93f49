"""Least recently used: decisions depend on the past alone."""

from __future__ import annotations

from collections.abc import Sequence

from sagann.plan.lru import place_recent
from sagann.plan.steps import Block, Move, Plan, Step
from tests.plan.schedules import block, step


def placed(steps: Sequence[Step], initial: Sequence[int], budget_bytes: int) -> Plan:
    return place_recent(
        steps,
        bytes_of=lambda each: 4 if each.needed_by else 10,
        initial=map(block, initial),
        bounds=(0, 1),
        budget_bytes=budget_bytes,
        lookahead=2,
    )


def moved(plan: Plan, kind: str) -> list[Block]:
    return [each.block for each in plan.operations if isinstance(each, Move) and each.kind == kind]


def test_a_cycle_one_block_larger_than_memory_is_loaded_anew() -> None:
    steps = [step([number]) for number in (0, 1, 2, 0, 1, 2)]
    # At the end block 0 is not read again and leaves room, so block 2 stays.
    assert moved(placed(steps, range(3), 20), "load") == [block(number) for number in (0, 1, 2, 0, 1)]
    assert moved(placed(steps, range(3), 30), "load") == [block(number) for number in (0, 1, 2)]


def test_a_use_makes_a_block_recent() -> None:
    steps = [step([number]) for number in (0, 1, 0, 2, 0, 1)]
    assert moved(placed(steps, range(3), 20), "load") == [block(number) for number in (0, 1, 2, 1)]


def test_nothing_is_loaded_ahead_and_what_is_not_read_again_is_dropped() -> None:
    steps = [step([0]), step([1])]
    plan = placed(steps, [0, 1], 100)
    assert not plan.ahead
    assert plan.operations.index(Move("load", block(1), 10)) > plan.operations.index(steps[0])
    assert plan.operations.index(Move("drop", block(0), 10)) == plan.operations.index(steps[0]) + 1
