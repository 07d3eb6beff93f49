"""Selection: of an interval's rows a chunk of a sparse graph needs few, and only these need to be loaded for it.

A pass goes over a chunk's edges by the rows of one end, which its state has; of the other end it reads a row here and
there: sources in CSC order, destinations in CSR. Where a chunk needs little enough of that interval, its edges are kept with
the numbers of the needed rows among themselves, beside their ids within the interval; the host picks these rows, and no
others are moved or take memory.

Invariants: which chunks may be read in this way depends on the graph, the intervals and the share alone. Numbers ascend as
the ids do, so edges keep their order, and results their bits.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2: selective scheduling. We differ in that the rows of destinations are picked
    too, for the backward, and in that whole plans are compared: where blocks stay in memory, there may be nothing to gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import torch

from sagann.errors import InputError
from sagann.plan.hops import PICKED_CSC, PICKED_CSR, PICKED_NUMBERED, EdgesOfType, Hop, topology_of
from sagann.plan.intervals import sizes
from sagann.plan.steps import Block

Select = Literal["auto", "never", "always"]
"""auto: without a spill folder, where the rule says so and a plan gains by it. never: not. always: every chunk, whatever it
costs; for tests."""

OTHER_END: Mapping[str, Literal["src", "dst"]] = MappingProxyType(
    {PICKED_CSC: "src", PICKED_CSR: "dst", PICKED_NUMBERED: "dst"}
)
"Of chunks that count picked rows, by form: whose rows these are."
# Sources that are sorted into intervals at a time, so that mapped files are never read whole.
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
    "A chunk that needs less than this share of an interval's rows has them picked."
    is_forced: bool = False
    "Whether a plan reads chunks in this way whatever it gains."

    @classmethod
    def by_rates(cls, *, pick_bytes: float, transfer_bytes: float) -> Selection:
        """NeuGraph's rule: picking and moving a share takes less time than moving all.

        Args:
            pick_bytes: that the host picks per second.
            transfer_bytes: that are moved to the device per second.
        """
        return cls(share=pick_bytes / (pick_bytes + transfer_bytes))

    @property
    def cost(self) -> float:
        """What a picked byte costs, in bytes that are moved with the whole of an interval."""
        return 1.0 if self.is_forced or not self.share else 1 / self.share

    def picks(self, *, needed: int, rows: int) -> bool:
        """Whether a chunk that needs so many of an interval's rows has them picked."""
        return needed < self.share * rows


NEVER = Selection(share=0.0)
"Nothing is picked."
ALWAYS = Selection(share=math.inf, is_forced=True)
"Everything is picked."


def require_select(select: object) -> None:
    """Check the name of a policy.

    Raises:
        InputError: there is none of that name.
    """
    if select not in get_args(Select):
        raise InputError(
            "unknown policy of picking rows",
            value=f"{select!r}, expected one of {', '.join(get_args(Select))}",
            where="stream.select",
            fix="Choose one of these.",
        )


def as_read(block: Block, chunk: Block, side: str) -> Block:
    """What a pass over a chunk reads of a block: the rows that it needs, where these are picked.

    Args:
        block: whole, of the interval at one side of the chunk.
        chunk: its edges.
        side: "src" or "dst".
    """
    return block._replace(needed_by=chunk) if OTHER_END.get(chunk.name) == side else block


def needed_rows(hop: Hop, bounds: Sequence[int], selection: Selection) -> dict[tuple[str, int, int], int]:
    """The rows that chunks would need, without making them: by form, source and destination interval.

    Only chunks that have them picked are counted.
    """
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
