"""The balanced cut of the vertices into contiguous parts, one for each worker: the longest time of a part is the least possible.

The time of a part is its cost over the speed of its worker. A limit on this time can be met if parts that each take as many vertices as
the limit allows, from the first worker to the last, reach the last vertex. Bisection finds the least limit that can be met, exactly, in
the arithmetic in which the times are computed. Of the many cuts with this longest time, the result is the one whose bounds are as near as
possible to those of parts in proportion to the speeds.

References:
    Jia et al., ROC, MLSys 2020, Sec. 4.2: contiguous parts by prefix sums and binary search. Pinar and Aykanat, Fast optimal load
    balancing algorithms for 1D partitioning, Journal of Parallel and Distributed Computing 64(8), 2004, Sec. 4: exact bisection.
    We differ in that workers have speeds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
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

    ``costs`` [num_vertices + 1] are those of the vertices before each vertex, such as CSC offsets; ``speeds`` have any common unit. Takes
    O(W log V) for each of a few dozen trials. Costs that are integers are compared exactly up to 2^53. A part is empty where there are
    more workers than vertices, or where a worker is too slow for any vertex.

    Example:
        >>> balanced_bounds(range(10), [1.0, 2.0])
        (0, 3, 9)
    """
    vertices, last = range(len(costs)), len(costs) - 1

    def cost(vertex: int) -> float:
        return float(costs[vertex])

    def time(worker: int, first: int, stop: int) -> float:
        return (cost(stop) - cost(first)) / speeds[worker]

    def longest_time(bounds: Sequence[int]) -> float:
        return max(time(worker, *part) for worker, part in enumerate(pairwise(bounds)))

    def furthest(worker: int, limit: float, first: int) -> int:
        """The greatest bound of a part from ``first`` on that meets the limit."""
        return bisect_right(vertices, limit, first + 1, key=lambda stop: time(worker, first, stop)) - 1

    def first_within(worker: int, limit: float, stop: int) -> int:
        """The least bound from which a part to ``stop`` meets the limit."""
        return bisect_left(vertices, True, 0, stop, key=lambda first: time(worker, first, stop) <= limit)

    total, all_speeds, wanted = cost(last), sum(speeds), [0]
    for speed in accumulate(speeds[:-1]):
        # Of the two vertices around the cost in proportion to the speeds, the nearer one.
        share = total * (speed / all_speeds)
        at = bisect_left(vertices, share, wanted[-1], last, key=cost)
        wanted.append(at - (at > wanted[-1] and cost(at) - share > share - cost(at - 1)))
    wanted.append(last)

    # No cut meets `least`, and some cut meets `most`, until no number lies between the two.
    least, most = total / all_speeds * (1 - _ROUNDING), longest_time(wanted)
    while least < (limit := least + (most - least) / 2) < most:
        bounds = [0]
        for worker in range(len(speeds)):
            bounds.append(furthest(worker, limit, bounds[-1]))
        if bounds[-1] == last:
            most = longest_time(bounds)
        else:
            least = limit

    # The least bound from which each worker and those after it reach the last vertex.
    earliest = [last] * (len(speeds) + 1)
    for worker in range(len(speeds) - 1, 0, -1):
        earliest[worker] = first_within(worker, most, earliest[worker + 1])
    bounds = [0]
    for worker in range(len(speeds) - 1):
        nearest = max(wanted[worker + 1], earliest[worker + 1], bounds[-1])
        bounds.append(min(nearest, furthest(worker, most, bounds[-1])))
    return *bounds, last


def vertex_ranges(indptr: Tensor, num_ranges: int, by: str = "edges") -> tuple[int, ...]:
    """Cut the vertices of a graph into contiguous ranges, so that the largest one is as small as it can be (:func:`balanced_bounds`).

    Range r is ``bounds[r]`` to ``bounds[r + 1] - 1``. A vertex with more in-edges than a range should have is not divided, so that a range
    beside it may be empty.

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
    return balanced_bounds(range(len(indptr)) if is_by_vertices else indptr.numpy(), [1.0] * num_ranges)
