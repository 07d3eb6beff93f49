"""Segments: in one piece each, ordered by what comes before them, and with no copy between devices inside."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from sagann.plan.segments import is_between_devices, segmented
from sagann.plan.spec import verify
from sagann.plan.steps import DEVICE, Block, Move, Plan, Step
from tests.plan.test_dealing import NAMES, ROUTES, parts, planned


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_segments_are_in_one_piece_and_wait_for_earlier_ones(name: str, route: str) -> None:
    count, way = ROUTES[route]
    for part, sizes in parts(name, 2 * count + 1):
        plan = planned(name, part, sizes, NAMES[:count], route=way).plan
        verify(plan)
        at = [(level, each.owner) for level, each in zip(plan.levels, plan.operations, strict=True)]
        assert at == sorted(at)
        worked = {place for place, each in zip(at, plan.operations, strict=True) if not apart(each)}
        begun = set[tuple[int, str]]()
        for number, (place, operation) in enumerate(zip(at, plan.operations, strict=True)):
            if is_between_devices(operation):
                # Its memory was used by earlier segments alone.
                assert place not in begun
            elif not apart(operation):
                begun.add(place)
            for before in plan.waits[number]:
                assert before < number
                if at[before][1] != place[1] or is_between_devices(plan.operations[before]):
                    assert at[before][0] < place[0]
        # Fewer graphs than operations.
        assert len(worked) < sum(not apart(each) for each in plan.operations)


def apart(operation: Step | Move) -> bool:
    return is_between_devices(operation) or operation.kind in ("drop", "return")


def test_each_device_keeps_its_order() -> None:
    part, sizes = parts("gcn", 7)[0]
    count, way = ROUTES["ring of 3"]
    plan = planned("gcn", part, sizes, NAMES[:count], route=way).plan
    again = segmented(replace(plan, levels=()))
    for name in NAMES[:count]:
        assert owned(again, name) == owned(plan, name)


def owned(plan: Plan, name: str) -> list[str]:
    return [each.label for each in plan.operations if each.owner == name]


def test_one_device_has_one_segment() -> None:
    part, sizes = parts("gcn", 3)[0]
    assert planned("gcn", part, sizes, [DEVICE]).plan.levels == ()
    assert planned("gcn", part, sizes, [DEVICE] * 2).plan.levels == ()


def test_work_beside_a_copy_is_cut_where_the_copy_begins_and_ends() -> None:
    x = Block("value", "x", 0, owner="device0")
    there, mine = x._replace(owner="device1"), Block("value", "y", 1, owner="device1")

    def step(device: int, *reads: Block) -> Step:
        return Step(kind="transform", number=0, interval=0, reads=reads, resource=f"device{device}")

    operations = (
        Move("load", x, 1),
        step(0, x),
        Move("load", mine, 1),
        step(1, mine),
        Move("load", there, 1, peer="device0", resource="link0-1"),
        step(1, mine),
        step(1, there),
        step(0, x),
    )
    waits = ((), (0,), (), (2,), (0,), (), (4,), ())
    plan = segmented(Plan(operations=operations, bounds=(0, 1), budget_bytes=9, peak_bytes=3, waits=waits))
    found: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for level, each in zip(plan.levels, plan.operations, strict=True):
        found[level, each.owner].append(each.kind)
    assert dict(found) == {
        (0, "device0"): ["load", "transform", "transform"],
        (0, "device1"): ["load", "transform"],
        # The copy, and work beside it.
        (1, "device1"): ["load", "transform"],
        (2, "device1"): ["transform"],
    }
