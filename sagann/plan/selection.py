"""Selection: which chunks have rows picked for them. A chunk of a sparse graph needs few rows of an interval.

A pass goes over a chunk's edges by the rows of one end, and reads rows of the other end here and there: sources in CSC order,
destinations in CSR order. Where a chunk needs few rows of the other end, the chunk is kept with ids that count only these rows.
The host picks the rows, and no other rows are moved or take memory.

Invariants: which chunks may be read in this way depends on the graph, the intervals and the share alone. The new ids ascend as
the old ones do, so edges keep their order, and results their bits.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2: selective scheduling. We differ in that rows of destinations are picked
    too, for the backward, and in that whole plans are compared: where blocks stay in memory, picking may gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from sagann.plan.hops import PICKED_CSC, PICKED_CSR, PICKED_NUMBERED, EdgesOfType, Hop, topology_of
from sagann.plan.intervals import sizes
from sagann.plan.steps import Block, Plan

Select = Literal["auto", "never", "always"]
"""auto: for chunks that the rule selects, without a spill folder, where a plan gains by it. never: for no chunk. always: for
every chunk at any cost, for tests."""

OTHER_END: Mapping[str, Literal["src", "dst"]] = {PICKED_CSC: "src", PICKED_CSR: "dst", PICKED_NUMBERED: "dst"}
"End of the edges whose rows are picked, by form of the chunk."
# Edges that are looked at together, so that a mapped file is never read whole.
_AT_ONCE = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which chunks have rows picked for them.

    Example:
        >>> selection = Selection.by_rates(pick_bytes=3e9, transfer_bytes=6e9)
        >>> selection.picks(needed=30, rows=100), selection.picks(needed=40, rows=100)
        (True, False)
        >>> round(selection.cost, 3)
        3.0
    """

    share: float
    "Rows are picked for a chunk that needs less than this share of an interval's rows."
    is_forced: bool = False
    "Whether a plan picks rows even where that gains nothing."

    @classmethod
    def by_rates(cls, *, pick_bytes: float, transfer_bytes: float) -> Selection:
        """NeuGraph's rule: picking and moving a share takes less time than moving all."""
        return cls(share=pick_bytes / (pick_bytes + transfer_bytes))

    @property
    def cost(self) -> float:
        """Cost of a picked byte, in bytes that are moved with a whole interval."""
        return 1.0 if self.is_forced or not self.share else 1 / self.share

    def cost_of(self, plan: Plan) -> float:
        """Cost of a plan's copies, in bytes of whole intervals."""
        return plan.moved_bytes + (self.cost - 1) * plan.picked_bytes

    def picks(self, *, needed: int, rows: int) -> bool:
        """Whether rows are picked for a chunk that needs this many of an interval's rows."""
        return needed < self.share * rows


NEVER = Selection(share=0.0)
"Nothing is picked."
ALWAYS = Selection(share=math.inf, is_forced=True)
"Everything is picked."


def as_read(block: Block, chunk: Block, side: str) -> Block:
    """The block that a pass over a chunk reads at one side: the whole one, or the rows that are picked for the chunk."""
    return block._replace(needed_by=chunk) if OTHER_END.get(chunk.name) == side else block


def needed_rows(hop: Hop, bounds: Sequence[int], selection: Selection) -> dict[tuple[str, int, int], int]:
    """Number of rows that each chunk needs, by form, source and destination interval; only chunks with picked rows."""
    topology = topology_of(hop)
    rows, count = sizes(tuple(bounds)), len(bounds) - 1
    cuts = torch.tensor(list(bounds), dtype=torch.int64, device="cpu")
    found: dict[tuple[str, int, int], int] = {}
    if not selection.share:
        return found
    for dst in range(count):
        sources = torch.zeros(topology.num_src, dtype=torch.bool, device="cpu")
        destinations = torch.zeros(count, rows[dst], dtype=torch.bool, device="cpu")
        offsets = topology.indptr[bounds[dst] : bounds[dst + 1] + 1]
        for begin in range(int(offsets[0]), int(offsets[-1]), _AT_ONCE):
            end = min(begin + _AT_ONCE, int(offsets[-1]))
            ids, numbers = topology.indices[begin:end].cpu().long(), torch.arange(begin, end, device="cpu")
            if isinstance(hop, EdgesOfType):
                own = hop.within(slice(begin, end)).cpu()
                ids, numbers = ids[own], numbers[own]
            sources[ids] = True
            at = torch.searchsorted(offsets, numbers, right=True) - 1
            destinations[torch.searchsorted(cuts, ids, right=True) - 1, at] = True
        for src in range(count):
            of_src = int(sources[bounds[src] : bounds[src + 1]].sum())
            found[PICKED_CSC, src, dst], found[PICKED_CSR, src, dst] = of_src, int(destinations[src].sum())
    return {
        at: needed
        for at, needed in found.items()
        if needed and selection.picks(needed=needed, rows=rows[at[1] if OTHER_END[at[0]] == "src" else at[2]])
    }
