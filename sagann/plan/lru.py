"""Least recently used: what a device's memory would keep as a cache, without knowledge of the coming steps.

When a step lacks room, the blocks whose last use is longest ago are evicted. Nothing is loaded before the step that reads it. A
block is stored when it is evicted and lies nowhere else. A block that no step reads any more is dropped, as a program frees a
tensor: the policy is a baseline for a plan's foresight, and is spared a loss that no framework has.

References:
    Jia et al., ROC, MLSys 2020, Sec. 7.7 compares its memory manager with this policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sagann.plan.device_memory import DeviceMemory, last_picks
from sagann.plan.residency import BudgetError
from sagann.plan.steps import Block, Plan, Step


def place_recent(
    steps: Sequence[Step],
    *,
    bytes_of: Callable[[Block], int],
    initial: Iterable[Block],
    bounds: Sequence[int],
    budget_bytes: int,
    lookahead: int = 0,
) -> Plan:
    """The policy "lru"; ``lookahead`` has no effect. Arguments and errors are those of :func:`sagann.plan.residency.place`."""
    memory = DeviceMemory(bytes_of, initial, budget_bytes)
    last_use = {block: number for number, step in enumerate(steps) for block in step.blocks}
    picked = last_picks(steps)
    # Blocks in memory, the least recently used first. A block of no bytes is never evicted.
    recent: dict[Block, None] = {}
    for number, step in enumerate(steps):
        blocks = step.blocks
        missing = [block for block in blocks if block not in memory.resident]
        excess = memory.held_bytes + sum(map(bytes_of, missing)) + step.temporary_bytes - budget_bytes
        for block in _victims(recent, memory.resident, frozenset(blocks), excess):
            memory.evict(block)
            del recent[block]
        for block in missing:
            if block in step.reads:
                memory.load(block)
            else:
                memory.make(block)
        if memory.held_bytes + step.temporary_bytes > budget_bytes:
            raise BudgetError.of_step(budget_bytes, step, bytes_of, len(bounds) - 1)
        memory.begin(step)
        memory.run(step)
        for block in blocks:
            recent.pop(block, None)
            if last_use[block] == number:
                memory.forget(block, is_picked_later=picked.get(block, -1) > number)
            elif memory.resident[block]:
                recent[block] = None
    return memory.plan(bounds, "lru", ahead=False, stores_early=False)


def _victims(
    recent: Iterable[Block], resident: dict[Block, int], needed: frozenset[Block], excess_bytes: int
) -> list[Block]:
    """The least recently used blocks beside those of the step, as many as free the bytes that are too much."""
    found: list[Block] = []
    for block in recent:
        if excess_bytes <= 0:
            break
        if block not in needed:
            found.append(block)
            excess_bytes -= resident[block]
    return found
