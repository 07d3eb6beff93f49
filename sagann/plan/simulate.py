"""Simulate: when each step and each copy of a plan runs on a machine, before anything runs.

The rules are the runtime's: steps run one after the other; loads in a lane of their own, and stores in another, each from
the moment the plan comes to it, and one of picked rows after the store of what they are picked from; a step waits for the loads of its blocks, and for the stores of those it writes; who drops
a block waits for its copies. Copies take a core from steps that run meanwhile.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2 and figure 6: simulated execution of a schedule.
"""

from __future__ import annotations

from collections.abc import Callable

from sagann.plan.machine import Machine
from sagann.plan.steps import UNLIMITED, Block, Move, Plan, Step
from sagann.plan.timeline import Lane, Span, Timeline, block_name, step_name

StepSeconds = Callable[[Step], float]
"How long a step takes."


def simulate(plan: Plan, step_s: StepSeconds, machine: Machine, *, on_disk: bool) -> Timeline:
    """The timeline of a plan.

    Args:
        plan: of an epoch.
        step_s: how long a step takes with nothing beside it.
        machine: whose copies these are.
        on_disk: whether blocks that are not in use lie in files, or in memory.
    """
    return _Simulation(plan, step_s, machine, on_disk=on_disk).run()


class _Simulation:
    def __init__(self, plan: Plan, step_s: StepSeconds, machine: Machine, *, on_disk: bool) -> None:
        self.plan = plan
        self.step_s = step_s
        self.rates: dict[Lane, float] = {
            "load": machine.disk_read_bytes if on_disk else machine.copy_bytes,
            "store": machine.disk_write_bytes if on_disk else machine.copy_bytes,
        }
        # In memory, rows are copied as they are picked; from a disk they have to come first.
        self.pick_s = 1 / machine.pick_bytes + (1 / machine.disk_read_bytes if on_disk else 0.0)
        self.machine = machine
        self.timeline = Timeline()
        self.now = 0.0
        self.free_at: dict[Lane, float] = {"load": 0.0, "store": 0.0}
        self.ends: dict[Lane, dict[Block, float]] = {"load": {}, "store": {}}

    def run(self) -> Timeline:
        for operation in self.plan.operations:
            if isinstance(operation, Step):
                self._step(operation)
            elif operation.kind == "drop":
                self._wait("load", operation.block)
                self._wait("store", operation.block)
            else:
                self._copy(operation.kind, operation)
        return self.timeline

    def _step(self, step: Step) -> None:
        for block in step.blocks:
            self._wait("load", block)
        for block in step.writes:
            self._wait("store", block)
        if step.kind == "turn":
            return
        seconds = self._slowed(self.step_s(step))
        self.timeline.spans.append(Span(lane="compute", name=step_name(step), start_s=self.now, seconds=seconds))
        self.now += seconds

    def _slowed(self, seconds: float) -> float:
        """A step's time, beside the copies that run meanwhile; each of them takes one of the cores."""
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
        # Without a budget nothing is copied: blocks are read where they lie.
        is_picked = move.block.needed_by is not None
        byte_s = self.pick_s if is_picked else 1 / self.rates[lane]
        seconds = 0.0 if self.plan.budget_bytes >= UNLIMITED else move.num_bytes * byte_s
        if is_picked:
            start_s = max(start_s, self.ends["store"].get(move.block.whole, 0.0))
        self.free_at[lane] = self.ends[lane][move.block] = start_s + seconds
        self.timeline.spans.append(
            Span(lane=lane, name=block_name(move.block), start_s=start_s, seconds=seconds, num_bytes=move.num_bytes)
        )

    def _wait(self, lane: Lane, block: Block) -> None:
        self.now = max(self.now, self.ends[lane].pop(block, 0.0))
