"""Strips: how many intervals of its rows a pass over the edges processes together, from the sizes of its blocks.

For an interval of its rows, a pass holds the state and the blocks of the rows (*own* bytes). Each interval of other ends
brings blocks too (*other* bytes), once for every strip. Where the blocks of all other ends stay in memory, strips of one
interval are best. Elsewhere every further state that fits saves loads: with strips of ``w`` intervals the blocks of other ends
are loaded ``P / w`` times, but for those that are in memory when the next strip begins.

References:
    Wolf and Lam, A data locality optimizing algorithm, PLDI 1991: tiling of loops. Ma et al., NeuGraph, USENIX ATC 2019,
    Sec. 3.1, holds one state, and gets fewer loads from a smaller P only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sagann.plan.sizes import needed_bytes
from sagann.plan.steps import Block, Step
from sagann.plan.sweeps import PassKey


def strip_widths(
    steps: Sequence[Step], bytes_of: Callable[[Block], int], budget_bytes: int, num_intervals: int
) -> Mapping[PassKey, int]:
    """The width of each pass's strips that needs the fewest loads; passes with strips of one are left out.

    ``steps`` are those of an epoch in column order, with strips of one interval.
    """
    found = {key: work.width(budget_bytes, num_intervals) for key, work in _passes(steps, bytes_of).items()}
    return {key: width for key, width in found.items() if width > 1}


@dataclass(slots=True)
class _PassSize:
    """Bytes of the blocks of a pass."""

    owns: dict[int, int] = field(default_factory=dict)
    "Bytes of the state and of the row blocks, by interval of the pass's rows."
    others: dict[int, int] = field(default_factory=dict)
    "Bytes of the blocks of other ends, by their interval."
    chunk: int = 0
    "Peak bytes of a chunk's edges, the gradients at its edges, and temporaries."
    follow: int = 0
    "Peak bytes of a step that comes between the chunks of two intervals."

    def add(self, step: Step, own: int, other: int, bytes_of: Callable[[Block], int]) -> None:
        """Add the blocks of a chunk's step."""
        of_own, of_other, of_chunk = 0, 0, step.temporary_bytes
        for block in step.blocks:
            if block.kind in ("edges", "edge_grad"):
                of_chunk += bytes_of(block)
            elif block.interval == own:
                of_own += bytes_of(block)
            else:
                of_other += bytes_of(block)
        self.chunk = max(self.chunk, of_chunk)
        # In a chunk on the diagonal, own and other blocks look alike.
        if own != other:
            self.owns[own] = max(self.owns.get(own, 0), of_own)
            self.others[other] = max(self.others.get(other, 0), of_other)

    def width(self, budget_bytes: int, num_intervals: int) -> int:
        """The smallest width with the fewest loads."""
        own, other = max(self.owns.values(), default=0), max(self.others.values(), default=0)
        best, least = 1, math.inf
        for width in range(1, num_intervals + 1):
            # While a chunk is computed, the next one is loaded.
            walking = width * own + 2 * (other + self.chunk)
            following = (width - 1) * own + self.follow
            if width > 1 and max(walking, following) > budget_bytes:
                break
            count = math.ceil(num_intervals / width)
            staying = max(0, budget_bytes - walking)
            loads = (count - 1) * max(0, sum(self.others.values()) - staying)
            if loads < least:
                # The last strip is about as wide as the others.
                best, least = math.ceil(num_intervals / count), loads
        return best


def chunk_ends(step: Step) -> tuple[PassKey, int, int] | None:
    """The pass of a chunk's step, the interval of its rows, and the interval of its other ends.

    None for other steps, and for a pass that has no rows of its own because it only leaves gradients for the next pass.
    """
    states = [block.interval for block in step.writes if block.kind == "state"]
    if step.kind not in ("gather", "gather_grad") or not states:
        return None
    (own,) = states
    other = step.dst_interval if own == step.interval else step.interval
    return PassKey(step.kind, step.number, step.backward_pass), own, other


def _passes(steps: Sequence[Step], bytes_of: Callable[[Block], int]) -> Mapping[PassKey, _PassSize]:
    found: defaultdict[PassKey, _PassSize] = defaultdict(_PassSize)
    between: list[Step] = []
    for step in steps:
        ends = chunk_ends(step)
        if ends is None:
            between.append(step)
            continue
        key, own, other = ends
        work = found[key]
        if between and work.owns:
            work.follow = max(work.follow, needed_bytes(between, bytes_of))
        between.clear()
        work.add(step, own, other, bytes_of)
    return found
