"""Memory policies keep different blocks: without a cache none, and where recency decides, the past alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sagann.plan.memory import MEMORY_POLICIES
from sagann.plan.residency import BudgetError
from sagann.plan.steps import Block, MemoryPolicy, Move, Plan, Step
from tests.plan.schedules import block, step

# Blocks 0 and 1 into a state, and what reads it.
STEPS = [step([0], [2]), step([0, 1, 2], [2]), step([2])]


def placed(policy: MemoryPolicy, steps: Sequence[Step], initial: Sequence[int], budget_bytes: int) -> Plan:
    return MEMORY_POLICIES[policy](
        steps,
        bytes_of=lambda _: 10,
        initial=[*map(block, initial)],
        bounds=(0, 1),
        budget_bytes=budget_bytes,
        lookahead=2,
    )


def moved(plan: Plan, kind: str) -> list[Block]:
    return [each.block for each in plan.operations if isinstance(each, Move) and each.kind == kind]


def test_a_cycle_one_block_larger_than_memory_is_loaded_anew() -> None:
    steps = [step([number]) for number in (0, 1, 2, 0, 1, 2)]
    # At the end block 0 is not read again and leaves room, so block 2 stays.
    assert moved(placed("lru", steps, range(3), 20), "load") == [block(number) for number in (0, 1, 2, 0, 1)]
    assert moved(placed("lru", steps, range(3), 30), "load") == [block(number) for number in (0, 1, 2)]


def test_a_use_makes_a_block_recent() -> None:
    steps = [step([number]) for number in (0, 1, 0, 2, 0, 1)]
    assert moved(placed("lru", steps, range(3), 20), "load") == [block(number) for number in (0, 1, 2, 1)]


def test_nothing_is_loaded_ahead_and_what_is_not_read_again_is_dropped() -> None:
    steps = [step([0]), step([1])]
    plan = placed("lru", steps, [0, 1], 100)
    assert not plan.ahead
    assert plan.operations.index(Move("load", block(1), 10)) > plan.operations.index(steps[0])
    assert plan.operations.index(Move("drop", block(0), 10)) == plan.operations.index(steps[0]) + 1


def test_without_a_cache_every_block_is_loaded_for_every_step_that_reads_it() -> None:
    plan = placed("none", STEPS, [0, 1], 1000)
    assert moved(plan, "load") == [block(number) for number in (0, 0, 1, 2, 2)]
    assert moved(plan, "store") == [block(2), block(2)]
    assert plan.peak_bytes == 30
    message = r"29 bytes, at least 30 bytes are needed: the step '.*' takes 30 B, .* of them for the block '.*' \(in the plan of 1"
    with pytest.raises(BudgetError, match=message) as caught:
        placed("none", STEPS, [0, 1], 29)
    assert caught.value.needed_bytes == 30


@pytest.mark.parametrize("policy", ["belady", "dp", "lru"])
def test_with_a_cache_every_block_is_loaded_once_where_all_fit(policy: MemoryPolicy) -> None:
    plan = placed(policy, STEPS, [0, 1], 1000)
    assert moved(plan, "load") == [block(0), block(1)]
    assert moved(plan, "store") == []
