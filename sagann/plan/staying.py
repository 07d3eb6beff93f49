"""Staying: constant blocks that lie in memory from epoch to epoch.

Features, edges and what is gathered once are the same in every epoch. Where the budget leaves room beside the steps, some of these blocks
stay: every step has that much less memory, and epochs do not load them. Epochs read their constants in the same order again and again, and on
such a cycle no policy loads less often than one that always keeps the same blocks.

Blocks that are loaded most often come first. The bytes that an epoch moves decide how many stay, because the blocks that it makes need memory
too. Steps and their order are those of the plan in which none stays, so results have the same bits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from sagann.plan.residency import BudgetError
from sagann.plan.sizes import needed_bytes
from sagann.plan.steps import Block, Move, Plan, Step

BytesOf = Callable[[Block], int]
"Gives the bytes of a block."
PlaceWithin = Callable[[BytesOf, int], Plan]
"Places the steps of a plan anew, with these bytes of blocks, within a budget."
# Parts into which the candidates are divided while the most that fit are sought, and parts of these that are tried.
_PARTS, _TRIED = 32, (1, 2, 4)


def with_staying(plan: Plan, bytes_of: BytesOf, place_within: PlaceWithin) -> Plan:
    """The plan that moves the fewest bytes, with blocks that stay or without."""
    steps = [each for each in plan.operations if isinstance(each, Step)]
    most = _most(_candidates(plan), steps, plan.budget_bytes, bytes_of)
    found = plan
    for part in _TRIED if most else ():
        with suppress(BudgetError):
            other = placed_beside(most[: len(most) // part], plan, bytes_of, place_within)
            found = min(found, other, key=lambda each: each.moved_bytes)
    return found


def placed_beside(staying: Sequence[Move], plan: Plan, bytes_of: BytesOf, place_within: PlaceWithin) -> Plan:
    """The plan with blocks that stay, given as their loads.

    Raises:
        BudgetError: a step does not fit beside them.
    """
    there, room_bytes = {load.block for load in staying}, replace(plan, staying=tuple(staying)).room_bytes
    placed = place_within(lambda block: 0 if block in there else bytes_of(block), room_bytes)
    peak_bytes = placed.peak_bytes + plan.budget_bytes - room_bytes
    return replace(placed, budget_bytes=plan.budget_bytes, peak_bytes=peak_bytes, staying=tuple(staying))


def _candidates(plan: Plan) -> list[Move]:
    """The loads of constants, the most frequent first."""

    def is_constant(block: Block) -> bool:
        # The caller brings gradients anew, and picked rows are of one chunk.
        return block.outside in plan.initial and block.kind != "grad" and block.needed_by is None

    loads = (each for each in plan.operations if isinstance(each, Move) and each.kind == "load" and each.num_bytes)
    return [load for load, _ in Counter(loads).most_common() if is_constant(load.block)]


def _most(loads: Sequence[Move], steps: Sequence[Step], budget_bytes: int, bytes_of: BytesOf) -> Sequence[Move]:
    """The first loads whose blocks fit beside the steps, and beside what is loaded for the next one."""
    counts = [len(loads) * part // _PARTS for part in range(_PARTS + 1)]

    def taken(count: int) -> int:
        there = {load.block for load in loads[:count]}
        least = needed_bytes(steps, lambda block: 0 if block in there else bytes_of(block), ahead=True)
        return least + sum(load.num_bytes for load in loads[:count])

    return loads[: counts[max(0, bisect_left(counts, budget_bytes + 1, key=taken) - 1)]]
