"""In which order partial results are merged: a tree of small fan-in, so that no program merges thousands alone.

The tree follows from the counts, so every rounding does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FAN_IN = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """Merges by level; a level reads what those before it wrote."""

    levels: tuple[NDArray[np.int64], ...]
    "[num_groups, 3] each: first and last (exclusive) slot, and where to: row r as r, slot s as -s - 1."
    num_slots: int
    "Slots of partial results and of what is merged on the way."


def merge_tree(rows: NDArray[np.int64], indptr: NDArray[np.int64], fan_in: int = FAN_IN) -> Tree:
    """The tree over each row's slots.

    Args:
        rows: what the merged results belong to.
        indptr: offsets of each row's slots, [len(rows) + 1].
        fan_in: slots that one program merges.
    """
    levels, first_slot = [], 0
    while len(rows):
        counts = -(-np.diff(indptr) // fan_in)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        first = np.repeat(indptr[:-1], counts) + within * fan_in
        last = np.minimum(first + fan_in, np.repeat(indptr[1:], counts))
        done = np.repeat(counts == 1, counts)
        next_slot = first_slot + int(indptr[-1])
        kept = np.cumsum(~done) - 1
        target = np.where(done, np.repeat(rows, counts), -(next_slot + kept) - 1)
        levels.append(np.stack([first_slot + first, first_slot + last, target], 1).astype(np.int64))
        first_slot = next_slot
        rows, counts = rows[counts > 1], counts[counts > 1]
        indptr = np.concatenate([[0], np.cumsum(counts)])
    return Tree(levels=tuple(levels), num_slots=first_slot)
