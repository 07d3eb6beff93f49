"""Routes: where each of several devices gets the blocks that others use too. The links of a machine decide which routes there are.

- each: from outside.
- chain: devices below one switch are one virtual device. The first one, its head, loads. Each of the others copies from the one before it.
- ring: all devices are in one ring, with a head below each switch. Of a round of blocks, one for each device, each of H heads loads its share
  of consecutive ones in the first slots, and none in the others. The block of slot s is at ring distance r in slot s + r
  (:meth:`sagann.plan.sweeps.Sweeps.visits`).
- spread: a ring in which every device is a head, because no two share a way from outside, as with NVLink between devices: each loads one block
  of a round, and all gather the others.

The heads are those of NGra's bandwidth tree: devices that load at the same time, each at its full rate. For gradients of sources, the
same routes carry what passes read of destinations.

References:
    Ma et al., NGra, 2018, Sec. 4; Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.3. We differ in that a block goes round only where the device
    before holds it: what lies in memory anyway is not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from sagann.plan.dealing import EACH, Before, Route
from sagann.plan.epoch import Planned
from sagann.plan.machine import Machine
from sagann.plan.simulate import simulate
from sagann.plan.steps import Step
from sagann.plan.work import StepWork

# Rates of a file have few digits.
_ROUNDING = 1e-6


def routes_of(machine: Machine, devices: Sequence[str]) -> list[Route]:
    """The routes that a machine has for devices, in the order of its wiring."""
    groups = _groups(machine, devices)
    links = machine.links

    def before(pairs: Sequence[tuple[str, str]]) -> dict[str, Before]:
        named = [(first, second, f"link{_number(first)}-{_number(second)}") for first, second in pairs]
        return {second: Before(first, link) for first, second, link in named if link in links}

    found = [EACH]
    if chains := before([pair for group in groups for pair in pairwise(group)]):
        found.append(Route(name="chain", before=chains))
    ring = before([*pairwise(devices), (devices[-1], devices[0])])
    if len(groups) > 1 and len({*map(len, groups)}) == 1 and len(ring) == len(devices):
        name = "spread" if len(groups) == len(devices) else "ring"
        found.append(Route(name=name, before=ring, num_heads=len(groups)))
    return found


class Routed(NamedTuple):
    """An epoch of several devices, by one route."""

    route: Route
    planned: Planned
    seconds: float
    "Simulated seconds of the epoch."


def routed(
    plan_by: Callable[[Route], Planned],
    machine: Machine,
    devices: Sequence[str],
    work_of: Callable[[Planned], StepWork],
) -> list[Routed]:
    """An epoch by every route that a machine has, the fastest first; ``plan_by`` plans it by a route."""
    found = []
    for route in routes_of(machine, devices):
        planned = plan_by(route)
        found.append(Routed(route, planned, seconds_of(planned, machine, work_of(planned))))
    return sorted(found, key=lambda each: each.seconds)


def seconds_of(planned: Planned, machine: Machine, work: StepWork) -> float:
    """Simulated seconds of an epoch whose blocks lie in the host's memory, each step by the rates of its device."""

    def step_s(step: Step) -> float:
        return work.of(step).seconds(machine.device(step.resource))

    return simulate(planned.plan, step_s, machine).seconds


def _groups(machine: Machine, devices: Sequence[str]) -> list[list[str]]:
    """The devices in groups: each begins with a head, which can load at its full rate while all other heads load."""
    loads = dict[str, float]()
    found: list[list[str]] = []
    for device in devices:
        link = machine.links.get(f"{device}.copy_in")
        switches = link.switches if link is not None else ()
        rate = link.bytes_per_s if link is not None else 0.0
        taken = {switch: loads.get(switch, 0.0) + rate for switch in switches}
        if not found or all(rate <= (1 + _ROUNDING) * machine.switches[switch] for switch, rate in taken.items()):
            loads |= taken
            found.append([])
        found[-1].append(device)
    return found


def _number(device: str) -> str:
    return device.removeprefix("device")
