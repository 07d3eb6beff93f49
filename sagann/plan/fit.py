"""Fit: the least number of intervals with which every step fits the budget, from sizes alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

from sagann.graph.versions import version_of
from sagann.plan.edges_of_type import EdgesOfType, Hop, topology_of
from sagann.plan.intervals import sizes
from sagann.plan.sizes import HopSize
from sagann.plan.steps import Block, Step

# Doubling the number of intervals so often without needing at least so much less ends the search.
_MOST_IN_VAIN = 2
_WORTH_IT = 0.98
# Grids whose sizes a topology keeps: a search tries some sixteen, and comes back to the last of them.
_MOST_GRIDS = 16


class UnmetError(Exception):
    """No number of intervals needs so little that the budget is met."""

    def __init__(self, count: int, budget_bytes: int, needed_bytes: int) -> None:
        super().__init__(f"{budget_bytes} bytes, at least {needed_bytes} are needed, in {count} intervals")
        self.count = count
        "Of the numbers that were tried, the one that needs least."
        self.needed_bytes = needed_bytes
        "Bytes that this number of intervals needs."


def hop_size(hop: Hop, bounds: Sequence[int]) -> HopSize:
    """The sizes of the chunks that bounds would make, without making them; counted once for the same bounds."""
    # Imported here: it loads Numba.
    from sagann.graph.chunk_counts import chunk_counts

    topology = topology_of(hop)
    of_type = (hop.data, hop.type) if isinstance(hop, EdgesOfType) else None

    def count() -> HopSize:
        found = chunk_counts(topology, bounds, of_type)
        edges = {(src, dst): int(found[src, dst]) for dst, src in found.T.nonzero().tolist()}
        return HopSize.of(topology, edges)

    kept: OrderedDict[object, HopSize] = topology.derived(("hop_sizes", of_type), OrderedDict)
    # Types may be changed in place.
    key = tuple(bounds), None if of_type is None else version_of(topology.edge_data[of_type[0]])
    found = kept.pop(key, None)
    size = kept[key] = count() if found is None else found
    if len(kept) > _MOST_GRIDS:
        kept.popitem(last=False)
    return size


def largest_of(
    bounds: Sequence[int], hops: Mapping[int, HopSize], most: int = 2
) -> tuple[tuple[int, ...], dict[int, HopSize]]:
    """A few intervals as large as the largest of ``bounds``, with chunks as large as the largest.

    No step of the whole grid needs more than some step of these.

    Args:
        bounds: of the intervals.
        hops: their chunks, by numbers of hops.
        most: intervals, where there are so many; :class:`sagann.plan.orders.Policy` says how many tell an order.
    """
    rows, count = max(sizes(tuple(bounds))), min(len(bounds) - 1, most)
    at = [(src, dst) for src in range(count) for dst in range(count)]
    largest = {
        number: replace(hop, edges=dict.fromkeys(at, max(hop.edges.values())) if hop.edges else {})
        for number, hop in hops.items()
    }
    return tuple(rows * number for number in range(count + 1)), largest


def needed_bytes(steps: Sequence[Step], bytes_of: Callable[[Block], int], *, ahead: bool = False) -> int:
    """What the hungriest step takes: the least budget that the steps can be placed in.

    Args:
        steps: in order.
        bytes_of: a block's size.
        ahead: whether what the next step reads should fit beside it, so that it can be loaded meanwhile.
    """
    most = 0
    for step, later in zip_longest(steps, steps[1:]):
        blocks = set(step.blocks)
        temporary = step.temporary_bytes
        if ahead and later is not None:
            blocks |= set(later.reads)
            temporary = max(temporary, later.temporary_bytes)
        most = max(most, temporary + sum(map(bytes_of, blocks)))
    return most


def least_count(needed: Callable[[int], int], budget_bytes: int, most: int) -> int:
    """The least number of intervals that needs no more than the budget.

    Args:
        needed: bytes that a number of intervals needs; the same for the same number, as it is asked again.
        budget_bytes: the limit.
        most: numbers beyond it make no sense.
    Raises:
        UnmetError: not even ``most`` suffice.
    """
    low, high, best, in_vain = 0, 1, 1, 0
    while needed(high) > budget_bytes:
        # Finer cuts do not help any more once the fixed parts dominate.
        in_vain = in_vain + 1 if high > 1 and needed(high) > _WORTH_IT * needed(best) else 0
        best = min(best, high, key=needed)
        if high >= most or in_vain == _MOST_IN_VAIN:
            low, high = _around(best, needed, budget_bytes, most)
            break
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if needed(middle) <= budget_bytes:
            high = middle
        else:
            low = middle
    return high


def _around(best: int, needed: Callable[[int], int], budget_bytes: int, most: int) -> tuple[int, int]:
    """Two numbers next to the best of the powers of two, of which the first needs more than the budget, and the second not.

    Raises:
        UnmetError: there are none.
    """
    tried = [*range(max(1, best // 2), min(2 * best, most), max(1, best // 4)), min(2 * best, most)]
    for low, high in pairwise(tried):
        if needed(high) <= budget_bytes:
            return low, high
    count = min([best, *tried], key=needed)
    raise UnmetError(count, budget_bytes, needed(count))
