"""Memory policies keep different blocks, and give plans of the same steps."""

from __future__ import annotations

import pytest

from sagann.plan.memory import MEMORY_POLICIES
from sagann.plan.residency import BudgetError
from sagann.plan.steps import Block, MemoryPolicy, Move, Plan, Step

X, Y, STATE = Block("value", "x", 0), Block("value", "x", 1), Block("state", "sum", 0)


def step(reads: tuple[Block, ...], writes: tuple[Block, ...] = ()) -> Step:
    return Step(kind="gather", number=0, interval=0, reads=reads, writes=writes)


# Two chunks into one state, and what reads it.
STEPS = [step((X,), (STATE,)), step((X, Y, STATE), (STATE,)), step((STATE,))]


def placed(policy: MemoryPolicy, budget_bytes: int = 1000) -> Plan:
    return MEMORY_POLICIES[policy](
        STEPS, bytes_of=lambda _: 10, initial=[X, Y], bounds=(0, 1), budget_bytes=budget_bytes, lookahead=2
    )


def moves(plan: Plan, kind: str) -> list[Block]:
    return [each.block for each in plan.operations if isinstance(each, Move) and each.kind == kind]


def test_without_a_cache_every_block_is_loaded_for_every_step_that_reads_it() -> None:
    plan = placed("none")
    assert moves(plan, "load") == [X, X, Y, STATE, STATE]
    assert moves(plan, "store") == [STATE, STATE]
    assert plan.peak_bytes == 30
    assert [each for each in plan.operations if isinstance(each, Step)] == STEPS


@pytest.mark.parametrize("policy", ["belady", "dp", "lru"])
def test_with_a_cache_every_block_is_loaded_once_where_all_fit(policy: MemoryPolicy) -> None:
    plan = placed(policy)
    assert moves(plan, "load") == [X, Y]
    assert moves(plan, "store") == []


def test_without_a_cache_a_step_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        BudgetError,
        match=r"29 bytes, at least 30 bytes are needed: the step '.*' takes 30 B, .* of them for the block '.*' \(in the plan of 1 interval\)",
    ) as caught:
        placed("none", 29)
    assert caught.value.needed_bytes == 30
