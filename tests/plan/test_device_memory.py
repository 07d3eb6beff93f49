"""Device memory: moves are noted, bytes counted, and a content is stored before it is lost."""

from __future__ import annotations

import pytest

from sagann.plan.device_memory import DeviceMemory, last_picks
from sagann.plan.spec import verify
from sagann.plan.steps import Block, Move, Plan, Step
from tests.plan.schedules import block, rows_of, step


def memory(*initial: int) -> DeviceMemory:
    return DeviceMemory(lambda each: 4 if each.needed_by else 10, map(block, initial), 100)


def planned(found: DeviceMemory, *, stores_early: bool = True) -> Plan:
    return found.plan((0, 1), "belady", ahead=True, stores_early=stores_early)


def ran(found: DeviceMemory, one: Step) -> None:
    found.begin(one)
    found.run(one)


def moves(plan: Plan) -> list[tuple[str, Block]]:
    return [(each.kind, each.block) for each in plan.operations if isinstance(each, Move)]


def test_what_lies_outside_is_loaded_and_dropped_without_a_store() -> None:
    found = memory(0)
    found.load(block(0))
    ran(found, step([0], temporary=5))
    assert found.held_bytes == 10
    found.evict(block(0))
    assert found.held_bytes == 0
    plan = planned(found)
    assert moves(plan) == [("load", block(0)), ("drop", block(0))]
    assert plan.peak_bytes == 15
    verify(plan)


@pytest.mark.parametrize("stores_early", [True, False])
def test_what_was_made_is_stored_once_and_early_where_asked_for(stores_early: bool) -> None:
    found = memory()
    found.make(block(0))
    first, second = step([], [0]), step([0])
    ran(found, first)
    ran(found, second)
    found.evict(block(0))
    found.load(block(0))
    ran(found, step([0]))
    found.evict(block(0))
    plan = planned(found, stores_early=stores_early)
    assert [kind for kind, _ in moves(plan)] == ["store", "drop", "load", "drop"]
    after = first if stores_early else second
    assert plan.operations[plan.operations.index(after) + 1] == Move("store", block(0), 10)
    verify(plan)


def test_what_is_made_anew_must_be_stored_anew() -> None:
    found = memory(0)
    found.load(block(0))
    found.begin(step([0], [0]))
    assert not found.can_load(block(0))
    found.run(step([0], [0]))
    found.evict(block(0))
    assert found.can_load(block(0))
    assert ("store", block(0)) in moves(planned(found))


def test_rows_are_picked_from_a_block_that_is_stored_first() -> None:
    found = memory()
    found.make(block(0))
    found.begin(step([], [0]))
    assert not found.can_load(rows_of(0)), "it is being made"
    found.run(step([], [0]))
    assert found.can_load(rows_of(0))
    found.load(rows_of(0))
    assert moves(planned(found)) == [("store", block(0)), ("load", rows_of(0))]
    assert found.dirty == set()


@pytest.mark.parametrize("is_picked_later", [True, False])
def test_what_is_forgotten_is_stored_only_where_rows_are_picked_from_it(is_picked_later: bool) -> None:
    found = memory()
    found.make(block(0))
    ran(found, step([], [0]))
    found.forget(block(0), is_picked_later=is_picked_later)
    assert found.can_load(rows_of(0)) == is_picked_later
    assert [kind for kind, _ in moves(planned(found))] == ["store", "drop"] if is_picked_later else ["drop"]


def test_what_never_was_made_is_not_loaded() -> None:
    with pytest.raises(AssertionError, match="value v: 1 is read before it is made"):
        memory(0).load(block(1))


def test_the_last_picks_are_found() -> None:
    assert last_picks([step([0], picked=[1]), step([1], picked=[1]), step([1])]) == {block(1): 1}
