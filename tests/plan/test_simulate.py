"""A simulated plan waits where the runtime does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sagann.plan.simulate import simulate
from sagann.plan.steps import UNLIMITED, Block, Move, Plan, Step
from sagann.plan.timeline import Timeline
from tests.plan.machines import ROUND

A, B, C = (Block("value", name, 0) for name in "abc")
# More cores than copies can take anything noticeable from.
MANY_CORES = replace(ROUND, num_cores=1 << 20)


def step(*reads: Block, writes: tuple[Block, ...] = (), kind: str = "transform") -> Step:
    return Step(kind=kind, number=0, interval=0, reads=reads, writes=writes)  # type: ignore[arg-type]


def simulated(*operations: Step | Move, on_disk: bool = False, budget_bytes: int = 1000) -> Timeline:
    plan = Plan(operations=operations, bounds=(0, 1), budget_bytes=budget_bytes, peak_bytes=0)
    return simulate(plan, lambda step: 1.0, MANY_CORES, on_disk=on_disk)


def starts(timeline: Timeline) -> dict[str, list[float]]:
    lanes = ("compute", "load", "store")
    return {lane: [pytest.approx(span.start_s, abs=1e-4) for span in timeline.of(lane)] for lane in lanes}


def test_loads_run_beside_steps_one_after_the_other() -> None:
    found = simulated(Move("load", A, 500), Move("load", B, 1000), step(A), step(B))
    assert starts(found) == {"compute": [0.5, 1.5], "load": [0.0, 0.5], "store": []}
    assert found.seconds == pytest.approx(2.5, abs=1e-4)
    assert found.hidden == pytest.approx(1 / 1.5, abs=1e-4)


def test_a_store_is_waited_for_by_whoever_drops_or_changes_its_block() -> None:
    store = Move("store", A, 3000)
    assert simulated(step(writes=(A,)), store, step(B)).of("compute")[1].start_s == pytest.approx(1.0)
    assert simulated(step(writes=(A,)), store, step(A)).of("compute")[1].start_s == pytest.approx(1.0)
    for waits in ((Move("drop", A, 3000), step(B)), (step(writes=(A,)),)):
        found = simulated(step(writes=(A,)), store, *waits)
        assert found.of("compute")[1].start_s == pytest.approx(4.0, abs=1e-4)


def test_the_host_decides_the_rates() -> None:
    moves = (Move("load", A, 100), Move("store", B, 100))
    assert simulated(*moves).seconds == pytest.approx(0.1)
    assert simulated(*moves, on_disk=True).seconds == pytest.approx(2.0)
    assert simulated(*moves, on_disk=True, budget_bytes=UNLIMITED).seconds == 0.0


def test_picked_rows_wait_for_the_store_of_what_they_are_picked_of() -> None:
    picked = replace(A, needed_by=Block("edges", "csc", 0, 0))
    found = simulated(step(writes=(A,)), Move("store", A, 1000), Move("load", picked, 100), step(picked))
    assert starts(found) == {"compute": [0.0, 2.2], "load": [2.0], "store": [1.0]}
    # From a disk rows come first, and are picked then.
    on_disk = simulated(Move("load", picked, 100), on_disk=True)
    assert on_disk.seconds == pytest.approx(1.2)


def test_a_copy_takes_a_core_from_the_step_beside_it() -> None:
    operations = (Move("load", A, 500), step(B), step(C))
    plan = Plan(operations=operations, bounds=(0, 1), budget_bytes=1000, peak_bytes=0)
    first, second = simulate(plan, lambda step: 1.0, ROUND, on_disk=False).of("compute")
    # Half as fast for half a second.
    assert first.seconds == pytest.approx(1.25)
    assert second.seconds == pytest.approx(1.0)


def test_the_callers_turn_takes_no_time() -> None:
    assert simulated(step(A), step(kind="turn"), step(A)).seconds == pytest.approx(2.0)
