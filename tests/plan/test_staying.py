"""Constants that stay in memory from epoch to epoch: epochs load less, within the same budget, in the same steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sagann.plan.residency import BudgetError, place
from sagann.plan.simulate import simulate
from sagann.plan.spec import PlanError, verify
from sagann.plan.staying import placed_beside, with_staying
from sagann.plan.steps import Block, Move, Plan, Step
from tests.plan.machines import ROUND
from tests.plan.schedules import block, step

SIZE = 10


def placed(steps: Sequence[Step], budget_bytes: int, bytes_of: Callable[[Block], int] = lambda _: SIZE) -> Plan:
    return place(
        steps,
        bytes_of=bytes_of,
        initial=[block(number) for number in range(6)],
        bounds=(0, 1),
        budget_bytes=budget_bytes,
    )


def staying(steps: Sequence[Step], budget_bytes: int) -> tuple[Plan, Plan]:
    """The plans without and with blocks that stay."""
    plan = placed(steps, budget_bytes)
    found = with_staying(plan, lambda _: SIZE, lambda bytes_of, room: placed(steps, room, bytes_of))
    assert verify(found, steps) == {"device0": found.peak_bytes}
    assert found.budget_bytes == plan.budget_bytes
    return plan, found


# Two sweeps over six constants, the second of which makes something of each.
SWEEPS = [*(step([number]) for number in range(6)), *(step([number], [6]) for number in range(6))]


def test_blocks_of_a_cycle_are_loaded_once_and_the_others_each_time() -> None:
    # A step and the next one need three blocks beside those that stay.
    plan, found = staying(SWEEPS, 60)
    assert plan.loaded_bytes == 70
    assert len(found.staying) == 3
    assert found.loaded_bytes == 40
    assert {load.num_bytes for load in found.staying} == {SIZE}


def test_with_room_for_all_nothing_is_loaded() -> None:
    _, found = staying(SWEEPS, 100)
    assert len(found.staying) == 6
    assert found.moved_bytes == 0


def test_without_room_beside_the_steps_nothing_stays() -> None:
    plan, found = staying(SWEEPS, 30)
    assert found == plan
    with pytest.raises(BudgetError):
        placed_beside(
            [Move("load", block(0), SIZE), Move("load", block(1), SIZE)],
            plan,
            lambda _: SIZE,
            lambda bytes_of, room: placed(SWEEPS, room, bytes_of),
        )


def test_what_an_epoch_makes_is_not_driven_out() -> None:
    # Four blocks are made and read in the end; the constants are read once.
    made = [step([number], [6 + number]) for number in range(4)]
    plan, found = staying([*made, step([6, 7, 8, 9])], 60)
    assert found.moved_bytes <= plan.moved_bytes
    assert not found.stored_bytes


def test_a_simulated_epoch_holds_them_and_does_not_load_them() -> None:
    plan, found = staying(SWEEPS, 100)
    before, after = (simulate(each, lambda _: 1.0, ROUND, tier="disk") for each in (plan, found))
    assert after.busy_s("load") == 0 < before.busy_s("load")
    assert after.peak_bytes == {"device0": found.peak_bytes}


def every() -> tuple[Move, ...]:
    return tuple(Move("load", block(number), SIZE) for number in range(6))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda plan: replace(plan, peak_bytes=plan.peak_bytes - 1), "are allowed"),
        (lambda plan: replace(plan, initial=frozenset()), "copies a block that stays"),
        (lambda plan: replace(plan, staying=(Move("load", block(6), SIZE),)), "writes a block that stays"),
        (lambda plan: replace(plan, staying=every(), budget_bytes=99, peak_bytes=99), "copies a block that stays"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_found(changed: Callable[[Plan], Plan], why: str) -> None:
    _, found = staying(SWEEPS, 60)
    with pytest.raises(PlanError, match=why):
        verify(replace(changed(found), waits=()))
