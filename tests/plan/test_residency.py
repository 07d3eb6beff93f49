"""Placing blocks: what is read is there, the budget holds, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from sagann.plan.epoch import MEMORY_POLICIES
from sagann.plan.residency import BudgetError, place
from sagann.plan.steps import Block, Move, Plan, Step
from tests.plan.schedules import block, schedules, step


def obey(plan: Plan, bytes_of: dict[Block, int], host: set[Block]) -> None:
    """Go through a plan as an executor does; contents are versions."""
    version = dict.fromkeys(host, 0)
    on_host = dict(version)
    resident: dict[Block, int] = {}
    peak = 0
    for operation in plan.operations:
        if isinstance(operation, Move):
            at = operation.block
            assert operation.num_bytes == bytes_of[at]
            if operation.kind == "load":
                assert at not in resident
                resident[at] = on_host[at.whole]
            elif operation.kind == "store":
                on_host[at] = resident[at]
            else:
                del resident[at]
            continue
        for read in operation.reads:
            assert resident[read] == version[read.whole], "read in an old version, or not there"
        for write in operation.writes:
            version[write] = resident[write] = version.get(write, 0) + 1
        held = sum(bytes_of[each] for each in resident)
        peak = max(peak, held + operation.temporary_bytes)
    assert peak <= plan.peak_bytes <= plan.budget_bytes
    assert resident == {}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_schedule_is_placed_within_its_budget(data: st.DataObject) -> None:
    small = data.draw(schedules())
    steps, bytes_of = list(small.steps), dict(small.sizes)
    budget = max(small.least_budget, 1) + data.draw(st.integers(0, 40))
    lookahead = data.draw(st.integers(0, 3))
    policy = data.draw(st.sampled_from(sorted(MEMORY_POLICIES)))

    def placed(budget: int) -> Plan:
        return MEMORY_POLICIES[policy](
            steps,
            bytes_of=bytes_of.__getitem__,
            initial=small.initial,
            bounds=(0, 1),
            budget_bytes=budget,
            lookahead=lookahead,
        )

    plan = placed(budget)
    assert [each for each in plan.operations if isinstance(each, Step)] == steps
    obey(plan, bytes_of, set(small.initial))
    with pytest.raises(BudgetError) as caught:
        placed(small.least_budget - 1)
    assert caught.value.needed_bytes >= small.least_budget


def test_what_rows_are_picked_of_is_stored_once_it_is_made() -> None:
    steps = [step([], [0]), step([], [1]), step([1], [], picked=[0])]
    plan = place(
        steps, bytes_of=lambda each: 4 if each.needed_by else 10, initial=[], bounds=(0, 1), budget_bytes=24
    )
    assert [each.block for each in plan.operations if isinstance(each, Move) and each.kind == "store"] == [block(0)]
    assert plan.operations.index(steps[0]) + 1 == plan.operations.index(Move("store", block(0), 10))
    assert plan.loaded_bytes == plan.picked_bytes == 4


def test_the_block_used_last_goes_first() -> None:
    steps = [step([0], []), step([1], []), step([2], []), step([0], []), step([1], []), step([2], [])]
    plan = place(
        steps, bytes_of=lambda _: 10, initial=map(block, range(3)), bounds=(0, 1), budget_bytes=20, lookahead=0
    )
    # Least recently used would load six times, Belady's choice four.
    assert plan.loaded_bytes == 40
