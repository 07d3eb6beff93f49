"""Simulate: when each operation of a plan runs on a machine, before anything runs. The only simulator of plans.

A device begins its operations in the plan's order. It runs its steps one after the other, and waits while one runs. A copy
goes to the queue of the resource that it occupies: loads, stores, or the link that a send names. A queue runs one operation
after the other. An operation starts when it is the first of its queue and the operations that it waits for have ended
(:mod:`sagann.plan.waits`).

- A transfer takes the link's latency, then its bytes at the link's rate. Transfers through a switch at the same time share
  its rate equally. A transfer runs at the least of its link's rate and its shares. Devices share their disk in the same way.
- An all-reduce starts when all its owners have reached it.
- On a processor, a thread that copies takes a core from steps until it has done all the copies that it was given.
- Within the memory of a processor, the computing threads copy, and the following operations wait. A load from the page cache
  is such a copy too, where the page cache holds all files.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2 and figure 6: simulated execution of a schedule.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sagann.errors import InputError
from sagann.plan.machine import Machine
from sagann.plan.steps import DEVICE, UNLIMITED, Block, Move, Plan, Step
from sagann.plan.timeline import Lane, Span, Timeline
from sagann.plan.waits import waits_of

StepSeconds = Callable[[Step], float]
"Seconds that a step takes when nothing runs beside it."
Tier = Literal["memory", "file cache", "disk"]
"Where blocks lie outside of the device: in memory, in files that the page cache holds, or in files that it does not hold."

_LANES: dict[str, Lane] = {"load": "load", "store": "store", "send": "exchange", "all-reduce": "exchange"}


def simulate(plan: Plan, step_s: StepSeconds, machine: Machine, *, tier: Tier = "memory") -> Timeline:
    """The timeline of a plan of one device or several.

    Args:
        plan: the operations.
        step_s: seconds of a step alone.
        machine: rates of copies, and number of cores.
        tier: where blocks lie outside of the devices.
    Raises:
        InputError: a move occupies a link that the machine has not.
        AssertionError: operations wait for one another in a circle.
    """
    return _Simulation(plan, step_s, machine, tier).run()


def copy_rates(machine: Machine, tier: Tier, device: str = DEVICE) -> Mapping[str, float]:
    """Bytes per second of a device's loads and stores.

    A copy between a file and a device goes both ways at the same time, at the rate of the slower way.
    """
    own, (_, disk) = machine.device(device), machine.disk_of(device)
    ways = {"load": own.host_to_device_bytes, "store": own.device_to_host_bytes}
    if tier == "memory":
        return {kind: rate or machine.copy_bytes for kind, rate in ways.items()}
    read = disk.cached_bytes_per_s if tier == "file cache" else disk.read_bytes_per_s
    files = {"load": read, "store": disk.write_bytes_per_s}
    return {kind: min(files[kind], rate or files[kind]) for kind, rate in ways.items()}


class _Device:
    """A device: its rates of copies, its operations and how many have begun, and the contents of its memory."""

    def __init__(self, name: str, machine: Machine, tier: Tier) -> None:
        self.name = name
        self.byte_s = {kind: 1 / rate for kind, rate in copy_rates(machine, tier, name).items()}
        # In memory, rows are copied as they are picked. From a disk, and to a device, there is a copy besides.
        is_copied = tier != "memory" or machine.host_to_device_bytes is not None
        self.pick_s = 1 / machine.pick_bytes + (self.byte_s["load"] if is_copied else 0.0)
        self.numbers: list[int] = []
        self.at = 0
        self.held: set[Block] = set()
        self.held_bytes = 0
        # Copies that have begun and not ended, by queue, and the number of queues with such copies: each has a busy thread.
        self.handed: Counter[str] = Counter()
        self.copying = 0

    def begin_copy(self, queue: str) -> None:
        self.copying += not self.handed[queue]
        self.handed[queue] += 1

    def end_copy(self, queue: str) -> None:
        self.handed[queue] -= 1
        self.copying -= not self.handed[queue]


@dataclass(slots=True, eq=False)
class _Running:
    """An operation that runs."""

    number: int
    queue: str
    start_s: float
    left_s: float
    "Seconds until the end, at full speed."
    rate: float = 0.0
    "Bytes per second at full speed; 0 for a step."
    switches: tuple[str, ...] = ()
    "Switches that the transfer goes through."
    device: _Device | None = None
    "For a step on a processor, the device whose copies take cores from the step."
    speed: float = 1.0
    "Share of the full speed."


class _Simulation:
    def __init__(self, plan: Plan, step_s: StepSeconds, machine: Machine, tier: Tier) -> None:
        self.plan = plan
        self.step_s = step_s
        self.machine = machine
        self.cores = machine.num_cores
        self.has_engines = machine.host_to_device_bytes is not None
        # Kinds of the moves that need no queue: the computing threads do the copies among them.
        self.by_device = {"drop", "receive"}
        if not self.has_engines and tier != "disk":
            self.by_device |= {"load"} if tier == "file cache" else {"load", "store"}
        self.waits = waits_of(plan.operations, plan.room_bytes, has_engines=self.has_engines)
        self.done = [False] * len(plan.operations)
        self.devices: dict[str, _Device] = {}
        # Whatever a plan makes, it drops.
        self.bytes = {each.block: each.num_bytes for each in plan.operations if isinstance(each, Move)}
        self.members: defaultdict[Block, set[str]] = defaultdict(set)
        for number, operation in enumerate(plan.operations):
            owner = operation.owner
            if owner not in self.devices:
                self.devices[owner] = _Device(owner, machine, tier)
            self.devices[owner].numbers.append(number)
            if isinstance(operation, Move) and operation.kind == "all-reduce":
                self.members[operation.block._replace(owner="")].add(owner)
        for load in plan.staying:
            self.devices[load.owner].held_bytes += load.num_bytes
        self.switches = dict(machine.switches)
        # Several devices share their disk as a switch, for each direction.
        self.shares_disks = tier == "disk" and len(self.devices) > 1
        if self.shares_disks:
            for name, disk in machine.disks.items():
                self.switches |= {f"{name}.load": disk.read_bytes_per_s, f"{name}.store": disk.write_bytes_per_s}
        self.arrived: defaultdict[Block, set[int]] = defaultdict(set)
        self.queues: defaultdict[str, deque[int]] = defaultdict(deque)
        self.running: dict[str, _Running] = {}
        # Queues and devices that go on when an operation ends.
        self.blocked: defaultdict[int, list[str]] = defaultdict(list)
        self.timeline = Timeline()
        self.now = 0.0

    def run(self) -> Timeline:
        for name in list(self.devices):
            self._proceed(name)
        while self.running:
            self._to_next_end()
        assert all(self.done), "operations wait for one another in a circle"
        return self.timeline

    def _to_next_end(self) -> None:
        """Advance to the end of the operation that ends first."""
        running = list(self.running.values())
        if self.switches:
            self._share(running)
        first, soonest_s = running[0], math.inf
        for each in running:
            if each.device is not None:
                each.speed = max(self.cores - each.device.copying, 1) / self.cores
            seconds = each.left_s / each.speed
            if seconds < soonest_s:
                first, soonest_s = each, seconds
        if soonest_s > 0:
            for each in running:
                each.left_s -= soonest_s * each.speed
            self.now += soonest_s
        del self.running[first.queue]
        self._end(first)

    def _share(self, running: Sequence[_Running]) -> None:
        """Set the speeds of transfers that go through switches."""
        through = Counter(switch for each in running for switch in each.switches)
        for each in running:
            if each.switches:
                rates = [self.switches[switch] / through[switch] for switch in each.switches]
                each.speed = min(1.0, min(rates) / each.rate)

    def _end(self, run: _Running) -> None:
        operation = self.plan.operations[run.number]
        span = Span(
            lane=_LANES.get(operation.kind, "compute"),
            name=operation.block.label if isinstance(operation, Move) else operation.label,
            start_s=run.start_s,
            seconds=self.now - run.start_s,
            num_bytes=operation.num_bytes if isinstance(operation, Move) else 0,
            resource=run.queue,
        )
        self.timeline.spans.append(span)
        self.done[run.number] = True
        device = self.devices[operation.owner]
        if run.queue == device.name:
            device.at += 1
        else:
            device.end_copy(run.queue)
        self._proceed(run.queue)
        for waiting in self.blocked.pop(run.number, ()):
            self._proceed(waiting)

    def _proceed(self, name: str) -> None:
        """Let a device or a queue begin the operations that can start."""
        if name in self.devices:
            self._advance(self.devices[name])
        elif name not in self.running and self.queues[name]:
            self._begin_copy(name)

    def _advance(self, device: _Device) -> None:
        """Let a device begin its operations, up to one that occupies the device or cannot start."""
        if device.name in self.running:
            return
        while device.at < len(device.numbers):
            number = device.numbers[device.at]
            operation = self.plan.operations[number]
            if isinstance(operation, Move):
                if operation.kind == "load":
                    self._hold(device, operation.block)
                if operation.kind not in self.by_device:
                    queue = operation.occupies
                    self.queues[queue].append(number)
                    device.begin_copy(queue)
                    self._proceed(queue)
                    device.at += 1
                    continue
            if not self._is_ready(number, device.name):
                return
            if isinstance(operation, Step):
                if operation.kind != "return":
                    self._compute(number, device, operation)
                    return
            elif operation.kind == "drop":
                if operation.block in device.held:
                    device.held.remove(operation.block)
                    device.held_bytes -= operation.num_bytes
            elif operation.kind == "receive":
                self._hold(device, operation.block)
            else:
                self._transfer(number, device.name, operation)
                return
            # A return, a drop and a receive take no time.
            self.done[number] = True
            device.at += 1
            for waiting in self.blocked.pop(number, ()):
                self._proceed(waiting)

    def _compute(self, number: int, device: _Device, step: Step) -> None:
        """Run a step."""
        for block in step.writes:
            self._hold(device, block)
        taken = device.held_bytes + step.temporary_bytes
        self.timeline.peak_bytes[device.name] = max(self.timeline.peak_bytes.get(device.name, 0), taken)
        self.timeline.memory.setdefault(device.name, []).append((self.now, taken))
        run = _Running(number, device.name, self.now, self.step_s(step))
        if not self.has_engines:
            run.device = device
        self.running[device.name] = run

    def _begin_copy(self, queue: str) -> None:
        number = self.queues[queue][0]
        if not self._is_ready(number, queue):
            return
        move = self.plan.operations[number]
        assert isinstance(move, Move)
        if move.kind == "all-reduce" and not self._all_arrived(number, move):
            return
        self.queues[queue].popleft()
        self._transfer(number, queue, move)

    def _transfer(self, number: int, queue: str, move: Move) -> None:
        """Run a copy."""
        link = self.machine.links.get(move.link)
        if link is None and (move.peer or move.kind == "all-reduce"):
            raise InputError(
                f"a plan occupies a link that the machine has not: '{move.link}', and the links are "
                f"{', '.join(self.machine.links) or 'none'} (in {self.machine.name})",
                hint=f'Add [links."{move.link}"] with bytes_per_s to the machine\'s file.',
            )
        if link is not None:
            seconds = link.latency_s + move.num_bytes / link.bytes_per_s
            self.running[queue] = _Running(number, queue, self.now, seconds, link.bytes_per_s, link.switches)
            return
        device = self.devices[move.owner]
        byte_s = device.byte_s[move.kind] if move.block.needed_by is None else device.pick_s
        if self.plan.budget_bytes >= UNLIMITED:
            # Without a budget nothing is copied: blocks are read where they lie.
            byte_s = 0.0
        disk, _ = self.machine.disk_of(device.name)
        shared = (f"{disk}.{move.kind}",) if self.shares_disks and byte_s else ()
        seconds, rate = move.num_bytes * byte_s, 1 / byte_s if shared else 0.0
        self.running[queue] = _Running(number, queue, self.now, seconds, rate, shared)

    def _all_arrived(self, number: int, move: Move) -> bool:
        block = move.block._replace(owner="")
        arrived = self.arrived[block]
        arrived.add(number)
        others = [self.plan.operations[each] for each in arrived]
        if {each.owner for each in others} != self.members[block]:
            return False
        for each in others:
            assert isinstance(each, Move)
            if each.occupies != move.occupies:
                queue = each.occupies
                self._transfer(self.queues[queue].popleft(), queue, each)
        arrived.clear()
        return True

    def _is_ready(self, number: int, name: str) -> bool:
        for each in self.waits[number]:
            if not self.done[each]:
                self.blocked[each].append(name)
                return False
        return True

    def _hold(self, device: _Device, block: Block) -> None:
        if block not in device.held:
            device.held.add(block)
            device.held_bytes += self.bytes.get(block, 0)
