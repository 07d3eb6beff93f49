"""Gaps: the times between two uses of a block, and what it costs a device not to keep the block meanwhile.

The order of the steps is given, so a memory policy decides one thing: for each gap, whether the block stays in memory. A block
that stays takes its bytes from every step within the gap. A block that leaves is loaded again, and it is stored before, unless its
content lies outside already. A content is stored once, however often it leaves. All other loads and stores are compulsory.

With a price for every byte of every step, each content can be decided alone: it stays where its rent is less than its copies. The
copies and rents of these decisions, less the rent of the memory that there is, are never more than what the best policy moves
(Lagrangian relaxation). So prices give a lower bound, and say which blocks a policy should rather keep.

References:
    Held, Wolfe and Crowder, Mathematical Programming 6, 1974 (subgradient steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sagann.plan.steps import ALL, Block, Step

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_ROUNDS = 300
"Subgradient steps that look for prices. Each takes some tens of microseconds for a thousand gaps."
# The sums of a bound are correct to this share of it.
_ROUNDING = 1e-9
# After this many rounds without a better bound, steps become half as long.
_PATIENCE = 8


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Gaps:
    """The gaps of a schedule that can be kept, one after the other by their first step, as arrays of one length.

    A gap without a step between its two uses costs nothing to keep, and is left out.
    """

    blocks: Sequence[Block]
    "Block of each gap."
    first: Ints
    "Number of the step that uses the block before the gap."
    next: Ints
    "Number of the step that reads the block after the gap."
    num_bytes: Ints
    "Bytes that the block takes while it is kept, and that its load copies where it is not."
    content: Ints
    "Number of the content that the block has in the gap. A step that writes the block makes a new content."
    store_bytes: Ints
    "By number of a content, bytes of its store where it leaves for the first time; 0 if it lies outside anyway."
    room_bytes: Ints
    "By step, bytes of the budget beside the blocks and the temporary memory of the step."
    compulsory_bytes: int
    "Bytes that are loaded and stored whatever is kept."
    never_kept: frozenset[tuple[Block, int]]
    "Blocks that leave after a step, with its number, whatever the policy: alone they do not fit beside some step of the gap."

    def __len__(self) -> int:
        return len(self.blocks)

    def over(self, values: npt.NDArray[Any]) -> Floats:
        """By step, the sum of a value of each gap over the gaps that the step lies within."""
        count = len(self.room_bytes) + 1
        begins = np.bincount(self.first + 1, weights=values, minlength=count)
        ends = np.bincount(self.next, weights=values, minlength=count)
        total: Floats = np.cumsum(begins - ends)[:-1]
        return total


def gaps_of(steps: Sequence[Step], bytes_of: Callable[[Block], int], budget_bytes: int) -> Gaps:
    """Find the gaps of steps, each of which fits the budget alone."""
    room = [budget_bytes - step.temporary_bytes - sum(map(bytes_of, step.blocks)) for step in steps]
    used: dict[Block, int] = {}
    contents: dict[Block, int] = {}
    store_bytes: list[int] = []
    found: list[tuple[Block, int, int, int]] = []
    never_kept = set[tuple[Block, int]]()
    compulsory_bytes = 0

    def store_anyway(content: int) -> int:
        """Count the store of a content as compulsory, once."""
        size, store_bytes[content] = store_bytes[content], 0
        return size

    for number, step in enumerate(steps):
        for block in step.blocks:
            size, before = bytes_of(block), used.get(block, -1)
            # A step that does not read the block makes it anew.
            if block in step.reads and (before < 0 or number > before + 1):
                if before < 0:
                    compulsory_bytes += size
                    # Rows are picked from a block outside, and undivided rows lie there in pieces.
                    for each in [block.whole] if block.interval != ALL else contents:
                        if each in contents and each._replace(interval=block.interval) == block.whole:
                            compulsory_bytes += store_anyway(contents[each])
                elif size > min(room[before + 1 : number]):
                    compulsory_bytes += size + store_anyway(contents[block])
                    never_kept.add((block, before))
                elif size:
                    found.append((block, before, number, contents[block]))
            if block in step.writes or block not in contents:
                contents[block] = len(store_bytes)
                store_bytes.append(size if block in step.writes else 0)
            used[block] = number
        # What is sent lies outside.
        compulsory_bytes += sum(store_anyway(contents[block]) for block in step.sends)
    found.sort(key=lambda gap: gap[1:3])
    return Gaps(
        blocks=[block for block, *_ in found],
        first=np.array([first for _, first, _, _ in found], dtype=np.int64),
        next=np.array([later for _, _, later, _ in found], dtype=np.int64),
        num_bytes=np.array([bytes_of(block) for block, *_ in found], dtype=np.int64),
        content=np.array([content for *_, content in found], dtype=np.int64),
        store_bytes=np.array(store_bytes, dtype=np.int64),
        room_bytes=np.array(room, dtype=np.int64),
        compulsory_bytes=compulsory_bytes,
        never_kept=frozenset(never_kept),
    )


class Prices(NamedTuple):
    """Prices of memory, and the lower bound that they give."""

    until: Floats
    "By step, and after the last: price of a byte that is held in all steps before."
    least_bytes: int
    "No policy moves fewer bytes than this."


def prices_of(gaps: Gaps, goal_bytes: int) -> Prices:
    """Look for the prices that give the best lower bound; the lengths of subgradient steps depend on the bytes that some policy moves."""
    num_steps = len(gaps.room_bytes)
    price, until = np.zeros(num_steps), np.zeros(num_steps + 1)
    best = Prices(until, gaps.compulsory_bytes)
    num_bytes = gaps.num_bytes.astype(np.float64)
    num_contents = len(gaps.store_bytes)
    # What is left of a budget without a limit must not drown the rest.
    room = np.minimum(gaps.room_bytes, gaps.over(num_bytes)).astype(np.float64)
    length, in_vain, goal = 1.0, 0, float(goal_bytes - gaps.compulsory_bytes)
    for _ in range(_ROUNDS):
        until = np.concatenate([[0.0], np.cumsum(price)])
        rent = num_bytes * (until[gaps.next] - until[gaps.first + 1])
        stay = np.bincount(gaps.content, weights=rent, minlength=num_contents)
        leave = gaps.store_bytes + np.bincount(
            gaps.content, weights=np.minimum(rent, num_bytes), minlength=num_contents
        )
        bound = float(np.minimum(stay, leave).sum() - price @ room)
        least_bytes = gaps.compulsory_bytes + math.ceil(bound - _ROUNDING * abs(bound))
        if least_bytes > best.least_bytes:
            best, in_vain = Prices(until, least_bytes), 0
        else:
            in_vain += 1
            if in_vain % _PATIENCE == 0:
                length /= 2
        kept = (stay <= leave)[gaps.content] | (rent < num_bytes)
        excess = gaps.over(num_bytes * kept) - room
        excess[(price == 0) & (excess < 0)] = 0.0
        square = float(excess @ excess)
        if square == 0 or goal <= bound:
            break
        price = np.maximum(0.0, price + length * (goal - bound) / square * excess)
    return best
