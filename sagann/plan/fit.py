"""Fit: the least number of intervals with which every step fits the budget, from sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sagann.graph.topology import Topology
from sagann.plan.residency import BudgetError
from sagann.plan.schedule import HopSize, Schedule
from sagann.plan.steps import Step

# Sources that are sorted into intervals at a time, so that mapped files are never read whole.
_AT_ONCE = 1 << 22


def hop_size(topology: Topology, bounds: Sequence[int]) -> HopSize:
    """The sizes of the chunks that bounds would make, without making them."""
    count = len(bounds) - 1
    cuts = torch.tensor(list(bounds), dtype=torch.int64)
    edges: dict[tuple[int, int], int] = {}
    for dst in range(count):
        first, last = int(topology.indptr[bounds[dst]]), int(topology.indptr[bounds[dst + 1]])
        found = torch.zeros(count, dtype=torch.int64)
        for begin in range(first, last, _AT_ONCE):
            sources = topology.indices[begin : min(begin + _AT_ONCE, last)].cpu().long()
            found += torch.bincount(torch.searchsorted(cuts, sources, right=True) - 1, minlength=count)
        edges |= {(src, dst): number for src, number in enumerate(found.tolist()) if number}
    data = topology.edge_data.values()
    return HopSize(
        num_edges=topology.num_edges,
        edges=edges,
        data_bytes=sum(rows.element_size() * rows[:1].numel() for rows in data) if edges else 0,
        id_bytes=topology.indices.element_size(),
    )


def needed_bytes(schedule: Schedule, steps: Sequence[Step]) -> int:
    """What the hungriest step takes: the least budget that the schedule can be placed in."""
    sizes: dict[object, int] = {}

    def size(block: object) -> int:
        if block not in sizes:
            sizes[block] = schedule.bytes_of(block)  # type: ignore[arg-type]
        return sizes[block]

    return max(
        step.temporary_bytes + sum(size(block) for block in dict.fromkeys((*step.reads, *step.writes)))
        for step in steps
    )


def least_count(needed: Callable[[int], int], budget_bytes: int, most: int) -> int:
    """The least number of intervals that needs no more than the budget.

    Args:
        needed: bytes that a number of intervals needs.
        budget_bytes: the limit.
        most: numbers beyond it make no sense: intervals of a single vertex.
    Raises:
        BudgetError: not even ``most`` suffice; ``needed_bytes`` is what the best number that was tried needs.
    """
    low, high, best = 0, 1, needed(1)
    while best > budget_bytes:
        if high >= most:
            raise BudgetError.smallest(budget_bytes, best)
        low, high = high, min(2 * high, most)
        now = needed(high)
        # Finer cuts do not help any more once the fixed parts dominate.
        if now >= best and now > budget_bytes:
            raise BudgetError.smallest(budget_bytes, best)
        best = now
    while high - low > 1:
        middle = (low + high) // 2
        if needed(middle) <= budget_bytes:
            high = middle
        else:
            low = middle
    return high
