"""No cache: every block is loaded for each step that reads it, and leaves the device's memory after the step.

This is streaming without foresight, the baseline that memory policies are measured against. A block that a step has written
is stored after the step if a later step needs it. Nothing is loaded ahead, so a step needs no more memory than its own blocks
and temporaries.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2, streams chunks and vertices anew for every pass. We differ in that an
    accumulator is stored and loaded between the chunks of a column too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sagann.plan.residency import BudgetError
from sagann.plan.steps import Block, Move, Plan, Step


def place_uncached(
    steps: Sequence[Step],
    *,
    bytes_of: Callable[[Block], int],
    on_host: Iterable[Block],
    bounds: Sequence[int],
    budget_bytes: int,
    lookahead: int = 0,
) -> Plan:
    """Add moves that load, store and drop the blocks of every step around it.

    Args:
        steps: in order.
        bytes_of: a block's size.
        on_host: the blocks that exist at the start, outside of the device.
        bounds: of the intervals.
        budget_bytes: what the device may hold.
        lookahead: without effect; nothing is loaded ahead.
    Raises:
        BudgetError: one step alone needs more.
    """
    initial = frozenset(on_host)
    outside = set(initial)
    last_need: dict[Block, int] = {}
    for number, step in enumerate(steps):
        for block in step.blocks:
            last_need[block] = last_need[block.whole] = number
    operations: list[Step | Move] = []
    peak = 0
    for number, step in enumerate(steps):
        held = {block: bytes_of(block) for block in step.blocks}
        needed_bytes = sum(held.values()) + step.temporary_bytes
        if needed_bytes > budget_bytes:
            raise BudgetError.of_step(budget_bytes, step, bytes_of, len(bounds) - 1)
        peak = max(peak, needed_bytes)
        for block in dict.fromkeys(step.reads):
            assert block.whole in outside, f"{block} is read before it is made"
            operations.append(Move("load", block, held[block]))
        operations.append(step)
        for block in dict.fromkeys(step.writes):
            if last_need[block] > number:
                operations.append(Move("store", block, held[block]))
                outside.add(block)
        operations += [Move("drop", block, size) for block, size in held.items()]
    return Plan(
        operations=tuple(operations),
        bounds=tuple(bounds),
        budget_bytes=budget_bytes,
        peak_bytes=peak,
        ahead=False,
        memory_policy="none",
        initial=initial,
    )
