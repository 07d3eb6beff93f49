"""The balanced cut of the vertices into contiguous parts, one for each worker: the longest time of a part is the least possible.

The time of a part is its cost over the speed of its worker. A limit on this time is met if parts that each take as many vertices as
the limit allows, from the first worker to the last, reach the last vertex: one binary search per worker. The least limit that
can be met is found by bisection. After every trial, the bound of the limit moves on to the next time that a part can have: down to the
longest time of the parts found, or up to the shortest time with which one of the parts would have had another vertex. So the
search ends at the exact optimum, in the arithmetic in which the times are computed. A bound of a part does not decrease when the limit
rises, so each trial only searches between the bounds of earlier trials: all trials together take little longer than the first.

Many cuts have the same longest time. The result is the one whose bounds are as near as this time allows to those of parts in
proportion to the speeds.

References:
    Jia et al., ROC, MLSys 2020, Sec. 4.2: contiguous parts by prefix sums and binary search. Pinar and Aykanat, Fast optimal load
    balancing algorithms for 1D partitioning, Journal of Parallel and Distributed Computing 64(8), 2004, Sec. 4: exact bisection
    with bounds that tighten. We differ in that workers have speeds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor

from sagann.errors import require_choice
from sagann.jit import Array

Balance = Literal["edges", "vertices", "cost"]
"""What ranges have about equally many of. edges: in-edges of their vertices, which the work of a layer goes by. cost: ranges begin with equal
edges; between epochs they move to equal seconds, as the cost model predicts them (:func:`sagann.partition.decide_repartition`)."""
BALANCES: tuple[Balance, ...] = get_args(Balance)
"Names of all policies."
# Total cost over total speed is a lower limit, but for rounding errors. These are many times smaller than this share.
_ROUNDING = 2.0**-40


def balanced_bounds(costs: Array | range, speeds: Sequence[float]) -> tuple[int, ...]:
    """Cut the vertices into one contiguous part for each worker, so that the slowest worker takes the shortest possible time.

    ``costs`` [num_vertices + 1] are those of the vertices before each vertex, such as CSC offsets; ``speeds`` have any common unit. Takes O(W log V) for
    each of a few dozen trials. Costs that are integers are compared exactly up to 2^53. A part is empty where there are more workers than vertices,
    or where a worker is too slow for any vertex.

    Example:
        >>> balanced_bounds(range(10), [1.0, 2.0])
        (0, 3, 9)
    """
    cut = _Cut(costs, speeds)
    proportional = cut.proportional()
    return tuple(cut.near(cut.least_limit(proportional), proportional))


class _Cut:
    """The cut of vertices with some costs for workers with some speeds."""

    def __init__(self, costs: Array | range, speeds: Sequence[float]) -> None:
        self.costs, self.speeds = costs, speeds
        self.bounds = range(len(costs))
        self.num_vertices = len(costs) - 1

    def cost(self, vertex: int) -> float:
        """The cost of the vertices before one."""
        return float(self.costs[vertex])

    def time(self, worker: int, first: int, stop: int) -> float:
        """The time of a part."""
        return (self.cost(stop) - self.cost(first)) / self.speeds[worker]

    def longest_time(self, bounds: Sequence[int]) -> float:
        """The time of the slowest worker."""
        return max(self.time(w, bounds[w], bounds[w + 1]) for w in range(len(self.speeds)))

    def proportional(self) -> list[int]:
        """The bounds next to those at which every part's cost would be proportional to its worker's speed."""
        total, all_speeds, speed, bounds = self.cost(self.num_vertices), sum(self.speeds), 0.0, [0]
        for each in self.speeds[:-1]:
            speed += each
            wanted = total * (speed / all_speeds)
            at = bisect_left(self.bounds, wanted, bounds[-1], self.num_vertices, key=self.cost)
            # Of the two vertices around the wanted cost, the nearer one.
            nearer = at > bounds[-1] and self.cost(at) - wanted > wanted - self.cost(at - 1)
            bounds.append(at - nearer)
        return [*bounds, self.num_vertices]

    def least_limit(self, bounds: Sequence[int]) -> float:
        """The least limit on the time of a part that can be met. ``bounds`` are those of any cut."""
        workers = range(len(self.speeds))
        least = self.cost(self.num_vertices) / sum(self.speeds) * (1 - _ROUNDING)
        most = self.longest_time(bounds)
        # For limits between least and most, the bounds of greedy parts are between these.
        low, high = [0] * len(bounds), [self.num_vertices] * len(bounds)
        while least < most:
            limit = least + (most - least) / 2
            if limit >= most:
                # No number lies between the two.
                limit = least
            tried = [0]
            for w in workers:
                tried.append(self.furthest(w, limit, tried[w], max(tried[w], low[w + 1]), high[w + 1]))
            if tried[-1] == self.num_vertices:
                most, high = self.longest_time(tried), tried
            else:
                least = min(most, *(self.time(w, tried[w], tried[w + 1] + 1) for w in workers))
                low = tried
        return most

    def furthest(self, worker: int, limit: float, first: int, low: int, high: int) -> int:
        """The greatest bound from ``low`` to ``high`` of a part from ``first`` on that meets the limit, as ``low`` does."""
        return bisect_right(self.bounds, limit, low + 1, high + 1, key=lambda v: self.time(worker, first, v)) - 1

    def earliest(self, worker: int, limit: float, stop: int) -> int:
        """The least bound from which a part to ``stop`` meets the limit."""
        return bisect_left(self.bounds, True, 0, stop, key=lambda v: self.time(worker, v, stop) <= limit)

    def near(self, limit: float, wanted: Sequence[int]) -> list[int]:
        """Bounds that meet the limit, as near to the wanted ones as they can be, from the first to the last."""
        num_workers = len(self.speeds)
        # The least bound from which the workers from w on reach the last vertex.
        earliest = [self.num_vertices] * (num_workers + 1)
        for w in range(num_workers - 1, 0, -1):
            earliest[w] = self.earliest(w, limit, earliest[w + 1])
        bounds = [0]
        for w in range(num_workers - 1):
            last = self.furthest(w, limit, bounds[w], bounds[w], self.num_vertices)
            bounds.append(min(max(wanted[w + 1], earliest[w + 1], bounds[w]), last))
        return [*bounds, self.num_vertices]


def vertex_ranges(indptr: Tensor, num_ranges: int, by: str = "edges") -> tuple[int, ...]:
    """Cut the vertices of a graph into contiguous ranges, so that the largest one is as small as it can be (:func:`balanced_bounds`).

    Range r is ``bounds[r]`` to ``bounds[r + 1] - 1``. A vertex with more in-edges than a range should have is not divided, so that a range beside it
    may be empty.

    Example:
        >>> import torch
        >>> vertex_ranges(torch.tensor([0, 4, 5, 6, 8]), 2)
        (0, 1, 4)
        >>> vertex_ranges(torch.tensor([0, 4, 5, 6, 8]), 2, by="vertices")
        (0, 2, 4)
    """
    require_choice(by, BALANCES, what="unknown balance", where="vertex_ranges")
    # Without edges all cuts are equally good.
    is_by_vertices = by == "vertices" or not int(indptr[-1])
    costs = range(len(indptr)) if is_by_vertices else indptr.numpy()
    return balanced_bounds(costs, [1.0] * num_ranges)
