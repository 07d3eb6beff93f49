"""A plan by hand on a machine by hand: four devices, of which two and two share a root. Times are worked out here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from sagann.plan.machine import Link
from sagann.plan.simulate import simulate
from sagann.plan.spec import PlanError, verify
from sagann.plan.steps import Block, Move, Plan, Step
from sagann.plan.timeline import Timeline
from tests.plan.machines import ROUND

# Each way into a device carries 100 bytes a second, and each root 150 for the two devices below it.
FOUR = replace(
    ROUND,
    host_to_device_bytes=100.0,
    device_to_host_bytes=100.0,
    devices={"device3": {"matmul_flops": 5e8}},
    links={
        **{
            f"device{number}.copy_in": Link(bytes_per_s=100.0, switches=(f"root{number // 2}",))
            for number in range(4)
        },
        "link0-1": Link(bytes_per_s=100.0),
        "link1-0": Link(bytes_per_s=100.0),
        "link2-3": Link(bytes_per_s=50.0, latency_s=0.5),
    },
    switches={"root0": 150.0, "root1": 150.0},
)
X = [Block("value", "x", number, owner=f"device{number}") for number in range(3)]
SENT = X[2]._replace(owner="device3")
GRADS = [Block("grad", "x", 0, owner=f"device{number}") for number in range(2)]
LINKS = ("link0-1", "link1-0")


def step(device: int, *reads: Block, writes: tuple[Block, ...] = ()) -> Step:
    return Step(kind="transform", number=device, interval=0, reads=reads, writes=writes, resource=f"device{device}")


def operations() -> list[Step | Move]:
    sizes = (300, 150)
    found: list[Step | Move] = []
    for device in range(2):
        found += [
            Move("load", X[device], sizes[device]),
            step(device, X[device], writes=(GRADS[device],)),
            Move("drop", X[device], sizes[device]),
            Move("all-reduce", GRADS[device], 100, resource=LINKS[device]),
            step(device, GRADS[device]),
            Move("drop", GRADS[device], 100),
        ]
    return [
        *found,
        Move("load", X[2], 300),
        Move("send", X[2], 300, peer="device3", resource="link2-3"),
        step(2, X[2]),
        Move("drop", X[2], 300),
        Move("receive", SENT, 300, peer="device2"),
        step(3, SENT),
        Move("drop", SENT, 300),
    ]


def plan_of(*operations: Step | Move) -> Plan:
    return Plan(operations=operations, bounds=(0, 1), budget_bytes=500, peak_bytes=400, initial=frozenset(X))


def times(timeline: Timeline) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for span in sorted(timeline.spans, key=lambda span: span.start_s):
        found.setdefault(span.resource, []).append((span.start_s, span.start_s + span.seconds))
    return {name: [pytest.approx(each) for each in spans] for name, spans in found.items()}


def test_four_devices_run_as_worked_out_on_paper() -> None:
    plan = plan_of(*operations())
    timeline = simulate(plan, lambda step: 1.0, FOUR)
    assert times(timeline) == {
        # Devices 0 and 1 share root0's 150 bytes a second: 75 each. After 2 s device 1 has its 150 bytes; device 0 has 150 of
        # its 300, and loads the others at its own 100 a second, in 1.5 s.
        "device0.copy_in": [(0.0, 3.5)],
        "device1.copy_in": [(0.0, 2.0)],
        # Steps of 1 s. The all-reduce starts when both have come to it, at 4.5 s, and its 100 bytes take 1 s.
        "device0": [(3.5, 4.5), (5.5, 6.5)],
        "device1": [(2.0, 3.0), (5.5, 6.5)],
        "link0-1": [(4.5, 5.5)],
        "link1-0": [(4.5, 5.5)],
        # Device 2 has root1 for itself: 300 bytes in 3 s. It computes while it sends: 0.5 s of latency, and 300 bytes in 6 s.
        "device2.copy_in": [(0.0, 3.0)],
        "device2": [(3.0, 4.0)],
        "link2-3": [(3.0, 9.5)],
        "device3": [(9.5, 10.5)],
    }
    assert timeline.seconds == pytest.approx(10.5)
    (sent,) = (span for span in timeline.spans if span.resource == "link2-3")
    assert sent.num_bytes == 300
    # Device 0 holds 300 bytes of rows and 100 of their gradient, device 1 150 and 100.
    peaks = {"device0": 400, "device1": 250, "device2": 300, "device3": 300}
    assert verify(plan) == timeline.peak_bytes == peaks


@pytest.mark.parametrize("is_apart", [True, False])
def test_a_ring_that_waits_before_a_send_that_the_other_device_needs_is_refused(is_apart: bool) -> None:
    sent, rings = X[0]._replace(owner="device1"), [f"ring of {link}" if is_apart else link for link in LINKS]
    plan = plan_of(
        Move("load", X[0], 100),
        step(0, X[0], writes=(GRADS[0],)),
        Move("all-reduce", GRADS[0], 100, resource=rings[0]),
        Move("send", X[0], 100, peer="device1", resource=LINKS[0]),
        Move("drop", X[0], 100),
        Move("drop", GRADS[0], 100),
        Move("receive", sent, 100, peer="device0"),
        step(1, sent, writes=(GRADS[1],)),
        Move("drop", sent, 100),
        Move("all-reduce", GRADS[1], 100, resource=rings[1]),
        Move("drop", GRADS[1], 100),
    )
    machine = replace(FOUR, links=FOUR.links | {f"ring of {link}": FOUR.links[link] for link in LINKS})
    if is_apart:
        verify(plan)
        # Load, step, send, step and all-reduce take 1 s each.
        assert simulate(plan, lambda step: 1.0, machine).seconds == pytest.approx(5.0)
        return
    with pytest.raises(AssertionError, match="operations wait for one another in a circle"):
        simulate(plan, lambda step: 1.0, machine)
    with pytest.raises(PlanError) as caught:
        verify(plan)
    assert str(caught.value) == (
        "operations wait in a circle, each for the next one, and the last for the first: 3 (send value x: 0 of device0), "
        "2 (all-reduce grad x: 0 of device0), 9 (all-reduce grad x: 0 of device1), 8 (drop value x: 0 of device1), "
        "7 (transform 1: 0 of device1), 6 (receive value x: 0 of device1)"
    )


@st.composite
def plans_of_exchanges(draw: st.DrawFn) -> Plan:
    """Three devices, each of which sends a block to each other one, and sums two gradients, in any order and on few queues."""
    found: list[Step | Move] = []
    grads = [Block("grad", "x", number) for number in range(2)]
    for device in range(3):
        name, others = f"device{device}", [other for other in range(3) if other != device]
        own = {other: Block("value", "x", other, device, owner=name) for other in others}
        summed = [grad._replace(owner=name) for grad in grads]
        units: list[list[Step | Move]] = []
        for other, block in own.items():
            link = draw(st.sampled_from([f"{name}.out", f"{name}.ring"]))
            units.append([Move("send", block, 1, peer=f"device{other}", resource=link)])
            came = Block("value", "x", device, other, owner=name)
            units.append(
                [Move("receive", came, 1, peer=f"device{other}"), step(device, came), Move("drop", came, 1)]
            )
        for grad in summed:
            link = draw(st.sampled_from([f"{name}.out", f"{name}.ring"]))
            waits = [step(device, grad)] if draw(st.booleans()) else []
            units.append([Move("all-reduce", grad, 1, resource=link), *waits])
        found += [Move("load", block, 1) for block in own.values()]
        found.append(step(device, *own.values(), writes=tuple(summed)))
        found += [each for unit in draw(st.permutations(units)) for each in unit]
        found += [Move("drop", block, 1) for block in (*own.values(), *summed)]
    initial = frozenset(each.block for each in found if isinstance(each, Move) and each.kind == "load")
    return Plan(operations=tuple(found), bounds=(0, 1), budget_bytes=99, peak_bytes=99, initial=initial)


@given(plans_of_exchanges(), st.booleans())
def test_a_plan_that_keeps_the_rules_runs_to_its_end(plan: Plan, has_engines: bool) -> None:
    links = {f"device{device}.{queue}": Link(bytes_per_s=100.0) for device in range(3) for queue in ("out", "ring")}
    machine = replace(FOUR if has_engines else ROUND, links=links, switches={})
    try:
        verify(plan)
    except PlanError:
        return
    simulate(plan, lambda step: 1.0, machine)


def test_a_queue_of_all_reduces_has_one_owner() -> None:
    shared = [
        each._replace(resource="link1-0") if isinstance(each, Move) and each.kind == "send" else each
        for each in operations()
    ]
    with pytest.raises(PlanError, match="the all-reduce grad x: 0 occupies link1-0, which device2 occupies too"):
        verify(plan_of(*shared))


def test_devices_share_the_rate_of_their_disk() -> None:
    plan = plan_of(
        *(each for device in range(2) for each in (Move("load", X[device], 100), step(device, X[device])))
    )
    for disk, load_s in (("disk0", 2.0), ("disk1", 1.0)):
        machine = replace(
            ROUND,
            num_cores=1 << 20,
            disks={**ROUND.disks, "disk1": ROUND.disks["disk0"]},
            devices={"device1": {"disk": disk}},
        )
        timeline = simulate(plan, lambda step: 1.0, machine, tier="disk")
        assert times(timeline)["device1.copy_in"] == [(0.0, load_s)]
