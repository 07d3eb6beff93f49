"""Simulate: when each step and each copy of a plan runs on a machine, before anything runs.

The rules are the runtime's: steps run one after the other; loads in a lane of their own, and stores in another, each from
the moment the plan comes to it, and one of picked rows after the store of what they are picked from; a step waits for the
loads of its blocks, and for the stores of those it writes. A block that is dropped while it is being stored makes loads
wait, and steps that do not fit beside it (:mod:`sagann.plan.leaving`). Copies take a core from steps that run meanwhile.
Within the memory of the processor that computes, all cores copy, and whatever follows waits. Files come from the disk, or,
where the system's cache holds them all, from there: then whoever computes reads them, and whatever follows waits as well.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2 and figure 6: simulated execution of a schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from sagann.plan.leaving import Leaving
from sagann.plan.machine import Machine
from sagann.plan.steps import UNLIMITED, Block, Move, Plan, Step
from sagann.plan.timeline import Lane, Span, Timeline, block_name, step_name

StepSeconds = Callable[[Step], float]
"How long a step takes."


Tier = Literal["memory", "file cache", "disk"]
"Where blocks lie that are not in use: in memory, in files that the system's cache holds, or in files that it does not hold."


def simulate(plan: Plan, step_s: StepSeconds, machine: Machine, *, tier: Tier) -> Timeline:
    """The timeline of a plan.

    Args:
        plan: of an epoch.
        step_s: how long a step takes with nothing beside it.
        machine: whose copies these are.
        tier: where blocks lie that are not in use.
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


class _Simulation:
    def __init__(self, plan: Plan, step_s: StepSeconds, machine: Machine, tier: Tier) -> None:
        self.plan = plan
        self.step_s = step_s
        self.rates: dict[Lane, float] = {
            "load": load_rate(machine, tier),
            "store": store_rate(machine, tier),
        }
        # In memory, rows are copied as they are picked; from a disk they have to come first, and to a device go then.
        comes = tier != "memory" or machine.host_to_device_bytes is not None
        self.pick_s = 1 / machine.pick_bytes + (1 / self.rates["load"] if comes else 0.0)
        self.machine = machine
        # Who computes copies, before anything else.
        self.copied_between: set[Lane] = set()
        if machine.host_to_device_bytes is None and tier != "disk":
            self.copied_between = {"load"} if tier == "file cache" else {"load", "store"}
        self.timeline = Timeline()
        self.now = 0.0
        self.free_at: dict[Lane, float] = {"load": 0.0, "store": 0.0}
        self.ends: dict[Lane, dict[Block, float]] = {"load": {}, "store": {}}
        # Whatever a plan makes, it drops.
        self.bytes = {each.block: each.num_bytes for each in plan.operations if isinstance(each, Move)}
        self.held: set[Block] = set()
        self.held_bytes = 0
        self.leaving = Leaving[float]()

    def run(self) -> Timeline:
        for operation in self.plan.operations:
            if isinstance(operation, Step):
                self._step(operation)
            elif operation.kind == "drop":
                self._drop(operation)
            else:
                self._copy(operation.kind, operation)
        return self.timeline

    def _step(self, step: Step) -> None:
        for block in step.blocks:
            self._wait("load", block)
        for block in step.writes:
            self._wait("store", block)
            self._hold(block)
        self.leaving.settle(self._is_past)
        room = self.plan.budget_bytes - self.held_bytes - step.temporary_bytes
        if self.leaving.excess_bytes > max(0, room):
            self.now = max(self.now, *self.leaving.stores)
        if step.kind == "turn":
            return
        seconds = self._slowed(self.step_s(step))
        self.timeline.spans.append(Span(lane="compute", name=step_name(step), start_s=self.now, seconds=seconds))
        self.now += seconds

    def _slowed(self, seconds: float) -> float:
        """A step's time, beside the copies that run meanwhile; each of them takes one of the cores."""
        if self.machine.host_to_device_bytes is not None:
            # A device copies without those who compute.
            return seconds
        cores, now, left = self.machine.num_cores, self.now, seconds
        for end in sorted(self.free_at.values()):
            running = sum(free_at >= end for free_at in self.free_at.values())
            if end <= now or left <= 0:
                continue
            speed = max(cores - running, 1) / cores
            done = min(left, (end - now) * speed)
            now += done / speed
            left -= done
        return now + left - self.now

    def _copy(self, lane: Lane, move: Move) -> None:
        start_s = max(self.now, self.free_at[lane])
        if lane == "load":
            self._hold(move.block)
            start_s = max(start_s, *self.leaving.load(move.num_bytes), 0.0)
        # Without a budget nothing is copied: blocks are read where they lie.
        is_picked = move.block.needed_by is not None
        byte_s = self.pick_s if is_picked else 1 / self.rates[lane]
        seconds = 0.0 if self.plan.budget_bytes >= UNLIMITED else move.num_bytes * byte_s
        if is_picked:
            start_s = max(start_s, self.ends["store"].get(move.block.whole, 0.0))
        self.free_at[lane] = self.ends[lane][move.block] = start_s + seconds
        if lane in self.copied_between:
            self.now = start_s + seconds
        self.timeline.spans.append(
            Span(lane=lane, name=block_name(move.block), start_s=start_s, seconds=seconds, num_bytes=move.num_bytes)
        )

    def _drop(self, move: Move) -> None:
        self._wait("load", move.block)
        if self.machine.host_to_device_bytes is not None:
            # Who drops a block of a device has computing wait for its store.
            self._wait("store", move.block)
        if move.block in self.held:
            self.held.remove(move.block)
            self.held_bytes -= move.num_bytes
        end_s = self.ends["store"].pop(move.block, 0.0)
        if end_s > self.now:
            self.leaving.drop(move.num_bytes, end_s)

    def _hold(self, block: Block) -> None:
        if block not in self.held:
            self.held.add(block)
            self.held_bytes += self.bytes.get(block, 0)

    def _is_past(self, end_s: float) -> bool:
        return end_s <= self.now

    def _wait(self, lane: Lane, block: Block) -> None:
        self.now = max(self.now, self.ends[lane].pop(block, 0.0))
