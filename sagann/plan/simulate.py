"""Simulate: when each operation of a plan runs on a machine, before anything runs. The only simulator of plans.

Each device begins its operations in the plan's order. It runs its own, the steps, one after the other, and waits meanwhile.
A copy goes to the queue of the resource that it occupies: loads, stores, and the link that a send names. A queue runs one
operation after the other. An operation starts when it is the first of its queue and those that it waits for have ended
(:mod:`sagann.plan.waits`).

- A transfer takes the link's latency, then its bytes at the link's rate. Transfers at the same time through a switch share
  its rate equally; a transfer runs at the least of its link's rate and its shares.
- An all-reduce starts when all its owners have come to it.
- On a processor, a thread that copies takes a core from steps, from when it is handed work until it has done all of it.
  Within the memory of a processor, the threads that compute copy, and whatever follows waits. Files come from the disk, or,
  where the system's cache holds them all, from there: then the threads that compute read them.
- A load takes the room of blocks that were dropped before, and waits until they are stored. A step that does not fit beside
  blocks that are dropped and not yet stored waits for them (:mod:`sagann.plan.leaving`). On a device with copy engines of
  its own, a drop waits for the store.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2 and figure 6: simulated execution of a schedule.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sagann.plan.leaving import Leaving
from sagann.plan.machine import Machine
from sagann.plan.steps import UNLIMITED, Block, Move, Plan, Step
from sagann.plan.timeline import Lane, Span, Timeline, block_name, step_name
from sagann.plan.waits import waits_of

StepSeconds = Callable[[Step], float]
"How long a step takes with nothing beside it."


Tier = Literal["memory", "file cache", "disk"]
"Where blocks lie that are not in use: in memory, in files that the system's cache holds, or in files that it does not hold."

_LANES: dict[str, Lane] = {"load": "load", "store": "store", "send": "exchange", "all-reduce": "exchange"}


def simulate(plan: Plan, step_s: StepSeconds, machine: Machine, *, tier: Tier = "memory") -> Timeline:
    """The timeline of a plan.

    Args:
        plan: of one device or several.
        step_s: how long a step takes with nothing beside it.
        machine: whose devices and links these are.
        tier: where blocks lie that are not in use.
    Raises:
        InputError: a move occupies a link that the machine has not.
        AssertionError: operations wait for one another in a circle.
    """
    return _Simulation(plan, step_s, machine, tier).run()


def load_rate(machine: Machine, tier: Tier) -> float:
    """Bytes loaded per second."""
    file_bytes = machine.file_cache_bytes if tier == "file cache" else machine.disk_read_bytes
    return _rate(file_bytes, machine.host_to_device_bytes, machine, tier)


def store_rate(machine: Machine, tier: Tier) -> float:
    """Bytes stored per second."""
    return _rate(machine.disk_write_bytes, machine.device_to_host_bytes, machine, tier)


def _rate(file_bytes: float, device_bytes: float | None, machine: Machine, tier: Tier) -> float:
    """Of copies; those between a file and a device take both ways at once, and as long as the slower one."""
    if tier == "memory":
        return device_bytes or machine.copy_bytes
    return min(file_bytes, device_bytes or file_bytes)


class _Device:
    """A device, and how far it has come with its operations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers: list[int] = []
        self.at = 0
        self.held: set[Block] = set()
        self.held_bytes = 0
        self.leaving = Leaving[int]()
        "Of the numbers of stores."
        self.handed: Counter[str] = Counter()
        "Copies that are begun and have not ended, by their queue."
        self.copying = 0
        "Queues that have some: each keeps a thread busy."

    def hand(self, queue: str) -> None:
        """Count a copy that begins."""
        self.copying += not self.handed[queue]
        self.handed[queue] += 1

    def take_back(self, queue: str) -> None:
        """Count a copy that has ended."""
        self.handed[queue] -= 1
        self.copying -= not self.handed[queue]


@dataclass(slots=True, eq=False)
class _Running:
    """An operation that runs."""

    number: int
    queue: str
    start_s: float
    left_s: float
    "Seconds that it still takes at full speed."
    rate: float = 0.0
    "Bytes per second at full speed; 0 for a step."
    switches: tuple[str, ...] = ()
    "Switches that it goes through."
    device: _Device | None = None
    "For a step on a processor, the device, whose copies take cores from the step."
    speed: float = 1.0
    "Share of the full speed."


class _Simulation:
    def __init__(self, plan: Plan, step_s: StepSeconds, machine: Machine, tier: Tier) -> None:
        self.plan = plan
        self.step_s = step_s
        self.machine = machine
        self.cores = machine.num_cores
        self.has_engines = machine.host_to_device_bytes is not None
        self.byte_s = {"load": 1 / load_rate(machine, tier), "store": 1 / store_rate(machine, tier)}
        # In memory, rows are copied as they are picked; from a disk they have to come first, and to a device go then.
        comes = tier != "memory" or self.has_engines
        self.pick_s = 1 / machine.pick_bytes + (self.byte_s["load"] if comes else 0.0)
        # Copies that the threads which compute do.
        self.by_device: frozenset[str] = frozenset()
        if not self.has_engines and tier != "disk":
            self.by_device = frozenset(["load"] if tier == "file cache" else ["load", "store"])
        self.waits = waits_of(plan.operations)
        self.done = [False] * len(plan.operations)
        self.devices: dict[str, _Device] = {}
        # Whatever a plan makes, it drops.
        self.bytes = {each.block: each.num_bytes for each in plan.operations if isinstance(each, Move)}
        self.stored: dict[Block, int] = {}
        self.members: defaultdict[Block, set[str]] = defaultdict(set)
        for number, operation in enumerate(plan.operations):
            owner = operation.resource if isinstance(operation, Step) else operation.block.owner
            if owner not in self.devices:
                self.devices[owner] = _Device(owner)
            self.devices[owner].numbers.append(number)
            if isinstance(operation, Move) and operation.kind == "all-reduce":
                self.members[operation.block._replace(owner="")].add(owner)
        self.arrived: defaultdict[Block, set[int]] = defaultdict(set)
        self.queues: defaultdict[str, deque[int]] = defaultdict(deque)
        self.running: dict[str, _Running] = {}
        # What is tried again when an operation ends: names of queues and devices.
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
        """Go to the moment at which the next operation ends."""
        running = list(self.running.values())
        if self.machine.switches:
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
                rates = [self.machine.switches[switch] / through[switch] for switch in each.switches]
                each.speed = min(1.0, min(rates) / each.rate)

    def _end(self, run: _Running) -> None:
        operation = self.plan.operations[run.number]
        lane: Lane = "compute"
        if isinstance(operation, Step):
            name, num_bytes, owner = step_name(operation), 0, operation.resource
        else:
            lane, name = _LANES[operation.kind], block_name(operation.block)
            num_bytes, owner = operation.num_bytes, operation.block.owner
        span = Span(
            lane=lane,
            name=name,
            start_s=run.start_s,
            seconds=self.now - run.start_s,
            num_bytes=num_bytes,
            resource=run.queue,
        )
        self.timeline.spans.append(span)
        self.done[run.number] = True
        if run.queue == owner:
            self.devices[owner].at += 1
        else:
            self.devices[owner].take_back(run.queue)
        self._proceed(run.queue)
        for waiting in self.blocked.pop(run.number, ()):
            self._proceed(waiting)

    def _proceed(self, name: str) -> None:
        """Have a device or a queue begin what it can."""
        if name in self.devices:
            self._advance(self.devices[name])
        elif name not in self.running and self.queues[name]:
            self._begin_copy(name)

    def _advance(self, device: _Device) -> None:
        """Have a device begin its operations, up to one that it runs itself or waits for."""
        if device.name in self.running:
            return
        while device.at < len(device.numbers):
            number = device.numbers[device.at]
            operation = self.plan.operations[number]
            if not isinstance(operation, Step) and operation.kind not in ("drop", "receive"):
                if operation.kind not in self.by_device:
                    self._hand(device, number, operation)
                    device.at += 1
                    continue
                if operation.kind == "load":
                    self._reserve(device, operation)
                else:
                    self.stored[operation.block] = number
            if not self._is_ready(number, device.name):
                return
            if isinstance(operation, Step):
                if not self._has_room(device, operation):
                    return
                if operation.kind != "return":
                    on = None if self.has_engines else device
                    self._run(number, device.name, self.step_s(operation), device=on)
                    return
            elif operation.kind == "drop":
                if not self._drop(device, operation):
                    return
            elif operation.kind == "receive":
                self._hold(device, operation.block)
            else:
                self._transfer(number, device.name, operation)
                return
            # These take no time.
            self.done[number] = True
            device.at += 1
            for waiting in self.blocked.pop(number, ()):
                self._proceed(waiting)

    def _hand(self, device: _Device, number: int, move: Move) -> None:
        """Put a copy into the queue of its resource."""
        queue = move.occupies
        if move.kind == "load":
            self._reserve(device, move)
        elif move.kind == "store":
            self.stored[move.block] = number
        self.queues[queue].append(number)
        device.hand(queue)
        self._proceed(queue)

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
        link = self.machine.link(move.occupies, must_be=move.kind in ("send", "all-reduce"))
        if link is not None:
            seconds = link.latency_s + move.num_bytes / link.bytes_per_s
            self._run(number, queue, seconds, rate=link.bytes_per_s, switches=link.switches)
            return
        byte_s = self.pick_s if move.block.needed_by is not None else self.byte_s[move.kind]
        # Without a budget nothing is copied: blocks are read where they lie.
        self._run(number, queue, 0.0 if self.plan.budget_bytes >= UNLIMITED else move.num_bytes * byte_s)

    def _run(
        self,
        number: int,
        queue: str,
        seconds: float,
        *,
        rate: float = 0.0,
        switches: tuple[str, ...] = (),
        device: _Device | None = None,
    ) -> None:
        self.running[queue] = _Running(number, queue, self.now, seconds, rate, switches, device)

    def _all_arrived(self, number: int, move: Move) -> bool:
        block = move.block._replace(owner="")
        arrived = self.arrived[block]
        arrived.add(number)
        others = [self.plan.operations[each] for each in arrived]
        owners = {each.block.owner for each in others if isinstance(each, Move)}
        if owners != self.members[block]:
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

    def _has_room(self, device: _Device, step: Step) -> bool:
        """Whether a step fits beside blocks that are dropped and not yet stored."""
        for block in step.writes:
            self._hold(device, block)
        device.leaving.settle(self.done.__getitem__)
        room = self.plan.budget_bytes - device.held_bytes - step.temporary_bytes
        taken = device.held_bytes + step.temporary_bytes
        self.timeline.peak_bytes[device.name] = max(self.timeline.peak_bytes.get(device.name, 0), taken)
        if device.leaving.excess_bytes > max(0, room):
            self.blocked[max(device.leaving.stores)].append(device.name)
            return False
        return True

    def _drop(self, device: _Device, move: Move) -> bool:
        store = self.stored.get(move.block)
        is_stored = store is None or self.done[store]
        if not is_stored and self.has_engines:
            assert store is not None
            self.blocked[store].append(device.name)
            return False
        if move.block in device.held:
            device.held.remove(move.block)
            device.held_bytes -= move.num_bytes
        if not is_stored:
            assert store is not None
            device.leaving.drop(move.num_bytes, store)
        self.stored.pop(move.block, None)
        return True

    def _reserve(self, device: _Device, move: Move) -> None:
        """Take the room of a load."""
        if move.block not in device.held:
            self._hold(device, move.block)
            device.leaving.load(move.num_bytes)

    def _hold(self, device: _Device, block: Block) -> None:
        if block not in device.held:
            device.held.add(block)
            device.held_bytes += self.bytes.get(block, 0)
