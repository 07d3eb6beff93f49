"""Memory policies: which blocks the device keeps, by name. A policy is a function from steps and sizes to a plan.

    belady: when room is needed, the block whose next use is farthest is evicted; coming blocks are loaded ahead.
    dp: a dynamic program looks for the plan that moves the fewest bytes; no other policy moves fewer
        (:mod:`sagann.plan.dynamic_program`).
    lru: when room is needed, the block whose last use is longest ago is evicted (:mod:`sagann.plan.lru`). This is a cache
        without foresight, a baseline.
    none: no block is kept. Every block is loaded for each step that reads it, and evicted after the step. This is streaming
        without a cache, another baseline. A step needs no more memory than its own blocks and temporaries.

A user may also choose "auto": the policy whose plan takes the fewest simulated seconds (:mod:`sagann.plan.fastest`).

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2, streams chunks and vertices anew for every pass, as "none" does. We differ
    in that "none" also stores and loads a state between the chunks of a column. Jia et al., ROC, MLSys 2020, Sec. 7.7
    compares streaming, a cache and a dynamic program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

from sagann.plan.dynamic_program import place_by_program
from sagann.plan.lru import place_recent
from sagann.plan.residency import BudgetError, place
from sagann.plan.steps import Block, MemoryPolicy, Move, Plan, Step


def place_uncached(
    steps: Sequence[Step],
    *,
    bytes_of: Callable[[Block], int],
    initial: Iterable[Block],
    bounds: Sequence[int],
    budget_bytes: int,
    lookahead: int = 0,
) -> Plan:
    """The policy "none"; ``lookahead`` has no effect. Arguments and errors are those of :func:`sagann.plan.residency.place`."""
    outside = set(initial)
    found = frozenset(outside)
    last_need: dict[Block, int] = {}
    for number, step in enumerate(steps):
        for block in step.blocks:
            last_need[block] = last_need[block.whole] = number
        last_need |= dict.fromkeys(step.sends, number)
    operations: list[Step | Move] = []
    peak = 0
    for number, step in enumerate(steps):
        held = {block: bytes_of(block) for block in step.blocks}
        needed_bytes = sum(held.values()) + step.temporary_bytes
        if needed_bytes > budget_bytes:
            raise BudgetError.of_step(budget_bytes, step, bytes_of, len(bounds) - 1)
        peak = max(peak, needed_bytes)
        for block in dict.fromkeys(step.reads):
            assert block.whole in outside, f"{block.label} is read before it is made"
            operations.append(Move("load", block, held[block]))
        operations.append(step)
        outside.update(step.receives)
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
        initial=found,
    )


MEMORY_POLICIES = {"belady": place, "dp": place_by_program, "lru": place_recent, "none": place_uncached}
"The function of each policy."
MemoryChoice = MemoryPolicy | Literal["auto"]
"A policy, or the fastest one by simulation."
MEMORY_CHOICES: tuple[MemoryChoice, ...] = ("auto", *get_args(MemoryPolicy))
"What a user may choose."
