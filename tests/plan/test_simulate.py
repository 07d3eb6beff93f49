"""A simulated plan waits where the runtime does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sagann.errors import InputError
from sagann.plan.machine import Link, Machine
from sagann.plan.simulate import Tier, simulate
from sagann.plan.steps import UNLIMITED, Block, Move, Plan, Step
from sagann.plan.timeline import Span, Timeline
from tests.plan.machines import ROUND, with_disk

A, B, C = (Block("value", name, 0) for name in "abc")
# More cores than copies can take anything noticeable from.
MANY_CORES = with_disk(replace(ROUND, num_cores=1 << 20), read_bytes_per_s=1e3, write_bytes_per_s=1e3)
TIERS_OF_A_DEVICE: tuple[tuple[Tier, float, float], ...] = (
    ("memory", 0.5, 2.5),
    ("file cache", 0.5, 2.5),
    ("disk", 1.0, 2.5),
)
"And the seconds of a load and a store."


def step(*reads: Block, writes: tuple[Block, ...] = (), kind: str = "transform") -> Step:
    return Step(kind=kind, number=0, interval=0, reads=reads, writes=writes)  # type: ignore[arg-type]


def simulated(
    *operations: Step | Move, tier: Tier = "disk", budget_bytes: int = 1000, machine: Machine = MANY_CORES
) -> Timeline:
    plan = Plan(operations=operations, bounds=(0, 1), budget_bytes=budget_bytes, peak_bytes=0)
    return simulate(plan, lambda step: 1.0, machine, tier=tier)


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
    assert simulated(*moves, tier="memory", machine=ROUND).seconds == pytest.approx(0.2)
    assert simulated(*moves, machine=ROUND).seconds == pytest.approx(2.0)
    assert simulated(*moves, tier="file cache", machine=ROUND).seconds == pytest.approx(0.4 + 2.0)
    assert simulated(*moves, machine=ROUND, budget_bytes=UNLIMITED).seconds == 0.0


def test_within_memory_whatever_follows_a_copy_waits_for_it() -> None:
    moves = (Move("load", A, 500), Move("store", B, 100), Move("load", C, 400))
    found = simulated(*moves, step(A), step(C), tier="memory")
    assert starts(found) == {"compute": [1.0, 2.0], "load": [0.0, 0.6], "store": [0.5]}
    assert found.hidden == 0.0


def test_whatever_follows_a_load_from_the_file_cache_waits_for_it_and_stores_run_beside() -> None:
    moves = (Move("load", A, 500), Move("store", B, 1000), Move("load", C, 250))
    machine = with_disk(MANY_CORES, cached_bytes_per_s=500.0)
    found = simulated(*moves, step(A), step(C), tier="file cache", machine=machine)
    assert starts(found) == {"compute": [1.5, 2.5], "load": [0.0, 1.0], "store": [1.0]}


def test_copies_to_a_device_have_rates_of_their_own_and_take_no_core() -> None:
    machine = replace(ROUND, host_to_device_bytes=200.0, device_to_host_bytes=40.0)
    operations = (Move("load", A, 100), Move("store", B, 100), step(C), step(C))
    plan = Plan(operations=operations, bounds=(0, 1), budget_bytes=1000, peak_bytes=0)
    for tier, load_s, store_s in TIERS_OF_A_DEVICE:
        found = simulate(plan, lambda step: 1.0, machine, tier=tier)
        assert [span.seconds for span in found.of("load")] == [load_s]
        assert [span.seconds for span in found.of("store")] == [store_s]
        assert [span.seconds for span in found.of("compute")] == [1.0, 1.0]


def test_picked_rows_wait_for_the_store_of_what_they_are_picked_of() -> None:
    picked = A._replace(needed_by=Block("edges", "csc", 0, 0))
    operations = (step(writes=(A,)), Move("store", A, 1000), Move("load", picked, 100), step(picked))
    found = simulated(*operations, tier="memory")
    assert starts(found) == {"compute": [0.0, 2.2], "load": [2.0], "store": [1.0]}
    # From a disk rows come first, and are picked then.
    assert starts(simulated(*operations)) == {"compute": [0.0, 2.3], "load": [2.0], "store": [1.0]}


def test_a_copy_takes_a_core_from_the_step_beside_it() -> None:
    operations = (Move("load", A, 500), step(B), step(C))
    first, second = simulated(*operations, machine=with_disk(ROUND, read_bytes_per_s=1e3)).of("compute")
    # Half as fast for half a second.
    assert first.seconds == pytest.approx(1.25)
    assert second.seconds == pytest.approx(1.0)


def test_the_next_load_waits_for_what_leaves_and_a_step_does_not() -> None:
    moves = (Move("store", A, 500), Move("drop", A, 500), Move("load", B, 500))
    found = simulated(step(writes=(A,)), *moves, step(C), step(B))
    assert starts(found) == {"compute": [0.0, 1.0, 2.0], "load": [1.5], "store": [1.0]}
    # Where there is no room beside it, the step waits as well.
    found = simulated(step(writes=(A,)), *moves[:2], step(C), budget_bytes=499)
    assert starts(found)["compute"] == [0.0, 1.5]


def loaded_by_two_devices(machine: Machine) -> Timeline:
    """Each of two devices loads 100 bytes, and computes for a second."""
    operations: list[Step | Move] = []
    for owner in ("device0", "device1"):
        block = A._replace(owner=owner)
        operations += [Move("load", block, 100), replace(step(block), resource=owner)]
    plan = Plan(operations=tuple(operations), bounds=(0, 1), budget_bytes=500, peak_bytes=0)
    return simulate(plan, lambda step: 1.0, machine, tier="disk")


def test_devices_share_the_rate_of_their_disk() -> None:
    for disk, load_s in (("disk0", 2.0), ("disk1", 1.0)):
        disks = {**ROUND.disks, "disk1": ROUND.disks["disk0"]}
        machine = replace(ROUND, num_cores=1 << 20, disks=disks, devices={"device1": {"disk": disk}})
        spans = [each for each in loaded_by_two_devices(machine).spans if each.resource == "device1.copy_in"]
        assert [(each.start_s, each.seconds) for each in spans] == [(0.0, pytest.approx(load_s))]


def test_a_link_that_the_machine_has_not_is_named() -> None:
    operations = (step(writes=(A,)), Move("all-reduce", A, 10, resource="link0-1"), step(A))
    machine = replace(ROUND, links={"device0.copy_in": Link(bytes_per_s=100.0)})
    with pytest.raises(InputError, match=r"links are device0.copy_in.*\[links.\"link0-1\"\]"):
        simulated(*operations, machine=machine)


def test_the_backward_begins_with_its_first_step_and_the_forward_may_overlap() -> None:
    timeline = Timeline()
    assert timeline.turn_s is None
    timeline.spans = [
        Span(lane="compute", name="transform_loss 1: 0", start_s=0.0, seconds=4.0),
        Span(lane="load", name="grad x: 0", start_s=1.0, seconds=2.0),
        Span(lane="compute", name="finish_grad 0: 1", start_s=5.0, seconds=1.0),
        Span(lane="compute", name="prepare_grad 0: 1", start_s=4.0, seconds=1.0),
    ]
    assert timeline.turn_s == (4.0, 4.0)
    timeline.spans.append(Span(lane="compute", name="gather 0: 2 to 1", start_s=6.0, seconds=1.0))
    assert timeline.turn_s == (4.0, 7.0)
