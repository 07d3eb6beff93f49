"""Gap moves: the loads, stores and drops of a plan for which it is decided which gaps are kept (:mod:`sagann.plan.gaps`).

A block whose gap is not kept stays until its room is needed. If it is used again before, it need not be loaded. Of the blocks that
may leave, the one with the farthest next use leaves first. Blocks of coming steps are loaded ahead into room that no kept gap and no
step until then takes, so loading ahead moves no bytes more.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import count

import numpy as np

from sagann.plan.device_memory import DeviceMemory, last_picks
from sagann.plan.gaps import Gaps, Reload
from sagann.plan.residency import FURTHEST
from sagann.plan.steps import Block, Step


def write_moves(
    memory: DeviceMemory, steps: Sequence[Step], gaps: Gaps, leaving: Collection[int], *, ahead: bool
) -> None:
    """Add the steps and their moves to the operations of a device's memory.

    Args:
        memory: memory at the start of the plan, empty.
        steps: the steps of the schedule.
        gaps: gaps of these steps within the memory's budget.
        leaving: numbers of the gaps that are not kept. The kept ones fit.
        ahead: whether blocks are loaded ahead.
    """
    _Writer(memory, steps, gaps, leaving).write(ahead=ahead)


class _Writer:
    def __init__(self, memory: DeviceMemory, steps: Sequence[Step], gaps: Gaps, leaving: Collection[int]) -> None:
        self.memory, self.steps, self.gaps = memory, steps, gaps
        kept = np.ones(len(gaps))
        kept[list(leaving)] = 0
        taken = memory.budget_bytes - gaps.room_bytes + gaps.over(gaps.num_bytes * kept).astype(np.int64)
        # By step, bytes of its blocks, its temporary memory, kept gaps, and blocks that are loaded ahead for later steps.
        self.taken: list[int] = taken.tolist()
        self.leaving = gaps.never_kept | {(gaps.blocks[gap], int(gaps.first[gap])) for gap in leaving}
        self.loads: defaultdict[int, list[Reload]] = defaultdict(list)
        for load in gaps.reloads:
            self.loads[load.step].append(load)
        self.next_use = {(load.block, load.since): load.step for load in gaps.reloads}
        self.last_pick = last_picks(steps)
        # Blocks that may leave, with the step that used them; as a heap, the farthest next use first, with outdated entries.
        self.may_leave: dict[Block, int] = {}
        self.order: list[tuple[int, int, int, Block]] = []
        self.entries = count()

    def write(self, *, ahead: bool) -> None:
        for number, step in enumerate(self.steps):
            self._prepare(number, step)
            if ahead:
                self._load_ahead(number)
            self.memory.run(step)
            self._release(number, step)

    def _prepare(self, number: int, step: Step) -> None:
        """Bring the blocks of a step into memory."""
        memory = self.memory
        for block in step.blocks:
            self.may_leave.pop(block, None)
        missing = [block for block in step.blocks if block not in memory.resident]
        is_there = self._make_room(sum(map(memory.bytes_of, missing)) + step.temporary_bytes, later_than=number)
        assert is_there, f"the gaps that are kept do not fit beside the step {step.label}"
        for block in missing:
            if block in step.reads:
                memory.load(block)
            else:
                memory.make(block)
        memory.begin(step)

    def _make_room(self, room: int, *, later_than: int) -> bool:
        """Evict blocks that may leave and are next used after a step, until there is room; return whether there is."""
        while self.memory.held_bytes + room > self.memory.budget_bytes:
            while self.order and self.may_leave.get(self.order[0][-1]) != self.order[0][1]:
                heapq.heappop(self.order)
            if not self.order or -self.order[0][0] <= later_than:
                return False
            *_, block = heapq.heappop(self.order)
            del self.may_leave[block]
            self.memory.evict(block)
        return True

    def _load_ahead(self, number: int) -> None:
        """Load blocks of coming steps in the order in which they are needed, while there is room."""
        memory = self.memory
        for later in range(number, min(number + 1 + FURTHEST, len(self.steps))):
            # The caller brings blocks at this step.
            if self.steps[later].kind == "return":
                return
            for load in self.loads[later] if later > number else ():
                if load.block in memory.resident or load.since >= number or not memory.can_load(load.block):
                    continue
                size = memory.bytes_of(load.block)
                if max(self.taken[number:later]) + size > memory.budget_bytes:
                    return
                if not self._make_room(size + self.steps[number].temporary_bytes, later_than=later):
                    return
                memory.load(load.block)
                for step in range(number, later):
                    self.taken[step] += size

    def _release(self, number: int, step: Step) -> None:
        """Drop the blocks of a step whose content no later step reads, and let others leave."""
        for block in step.blocks:
            at = block, number
            if at in self.gaps.last:
                self.memory.forget(block, is_picked_later=self.last_pick.get(block, -1) > number)
            elif at in self.leaving:
                self.may_leave[block] = number
                heapq.heappush(self.order, (-self.next_use[at], number, next(self.entries), block))
