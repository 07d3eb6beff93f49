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

from collections.abc import Sequence

import numpy as np

from sagann.errors import InputError
from sagann.graph.counting_sort import Array
from sagann.jit import compiled
from sagann.partition.part_costs import PartCosts

# Total cost over total speed is a lower limit, but for rounding errors. These are many times smaller than this share.
_ROUNDING = 2.0**-40


def balanced_bounds(costs: PartCosts, speeds: Sequence[float]) -> tuple[int, ...]:
    """Cut the vertices into one contiguous part for each worker, so that the slowest worker takes the shortest possible time.

    Takes O(W log V) for each of a few dozen trials. Costs that are integers are compared exactly up to 2^53. A part is empty
    where there are more workers than vertices, or where a worker is too slow for any vertex.

    Args:
        costs: cost of any part: vertices, edges, or seconds by the cost model (:meth:`sagann.partition.CostModel.part_costs`).
        speeds: speed of each worker, in any common unit; a part goes to the worker of the same index.
    Returns:
        ``len(speeds) + 1`` vertex ids that do not decrease, from 0 to the number of vertices.
    Raises:
        InputError: there is no worker, or a speed is not a positive number.
    Example:
        >>> balanced_bounds(PartCosts.of_vertices(9), [1.0, 2.0])
        (0, 3, 9)
    """
    rates = np.asarray(speeds, dtype=np.float64)
    if len(rates) == 0 or not (np.isfinite(rates) & (rates > 0)).all():
        raise InputError(
            f"vertices cannot be cut for these workers: speeds {list(speeds)}, at least one, each a positive "
            "number (in balanced_bounds)",
            hint="Pass a positive speed for every worker, 1.0 where nothing is known.",
        )
    return tuple(_balanced(costs.sums, costs.weights, rates).tolist())


@compiled()
def _balanced(sums: Array, weights: Array, speeds: Array) -> Array:
    proportional = _proportional(sums, weights, speeds)
    limit = _least_limit(sums, weights, speeds, proportional)
    return _near(sums, weights, speeds, limit, proportional)


@compiled()
def _cost(sums: Array, weights: Array, v: int) -> float:
    """The cost of the vertices before v. It does not decrease with v, nor do its roundings."""
    cost = weights[0] * v
    for k in range(sums.shape[1]):
        cost += weights[k + 1] * sums[v, k]
    return cost


@compiled()
def _time(sums: Array, weights: Array, speed: float, first: int, stop: int) -> float:
    return (_cost(sums, weights, stop) - _cost(sums, weights, first)) / speed


@compiled()
def _proportional(sums: Array, weights: Array, speeds: Array) -> Array:
    """The bounds next to those at which every part's cost would be proportional to its worker's speed."""
    num_vertices, num_workers = len(sums) - 1, len(speeds)
    total, all_speeds = _cost(sums, weights, num_vertices), speeds.sum()
    bounds = np.zeros(num_workers + 1, dtype=np.int64)
    bounds[num_workers] = num_vertices
    speed = 0.0
    for w in range(num_workers - 1):
        speed += speeds[w]
        wanted = total * (speed / all_speeds)
        low, high = bounds[w], num_vertices
        while low < high:
            middle = (low + high) // 2
            if _cost(sums, weights, middle) < wanted:
                low = middle + 1
            else:
                high = middle
        # Of the two vertices around the wanted cost, the nearer one.
        if low > bounds[w] and _cost(sums, weights, low) - wanted > wanted - _cost(sums, weights, low - 1):
            low -= 1
        bounds[w + 1] = low
    return bounds


@compiled()
def _least_limit(sums: Array, weights: Array, speeds: Array, bounds: Array) -> float:
    """The least limit on the time of a part that can be met. ``bounds`` are those of any cut."""
    num_vertices, num_workers = len(sums) - 1, len(speeds)
    least = _cost(sums, weights, num_vertices) / speeds.sum() * (1 - _ROUNDING)
    most = _longest_time(sums, weights, speeds, bounds)
    # For limits between least and most, the bounds of greedy parts are between these.
    low, high = np.zeros(num_workers + 1, dtype=np.int64), np.full(num_workers + 1, num_vertices, dtype=np.int64)
    tried = np.zeros(num_workers + 1, dtype=np.int64)
    while least < most:
        limit = least + (most - least) / 2
        if limit >= most:
            # No number lies between the two.
            limit = least
        for w in range(num_workers):
            begin = max(tried[w], low[w + 1])
            tried[w + 1] = _furthest(sums, weights, speeds[w], limit, tried[w], begin, high[w + 1])
        if tried[num_workers] == num_vertices:
            most = _longest_time(sums, weights, speeds, tried)
            high[:] = tried
        else:
            least = most
            for w in range(num_workers):
                least = min(least, _time(sums, weights, speeds[w], tried[w], tried[w + 1] + 1))
            low[:] = tried
    return most


@compiled()
def _longest_time(sums: Array, weights: Array, speeds: Array, bounds: Array) -> float:
    longest = 0.0
    for w in range(len(speeds)):
        longest = max(longest, _time(sums, weights, speeds[w], bounds[w], bounds[w + 1]))
    return longest


@compiled()
def _furthest(sums: Array, weights: Array, speed: float, limit: float, first: int, low: int, high: int) -> int:
    """The greatest bound from ``low`` to ``high`` of a part from ``first`` on that meets the limit, as ``low`` does."""
    before = _cost(sums, weights, first)
    while low < high:
        middle = (low + high + 1) // 2
        if (_cost(sums, weights, middle) - before) / speed <= limit:
            low = middle
        else:
            high = middle - 1
    return low


@compiled()
def _near(sums: Array, weights: Array, speeds: Array, limit: float, wanted: Array) -> Array:
    """Bounds that meet the limit, as near to the wanted ones as they can be, from the first to the last."""
    num_vertices, num_workers = len(sums) - 1, len(speeds)
    # The least bound from which the workers from w on reach the last vertex.
    earliest = np.full(num_workers + 1, num_vertices, dtype=np.int64)
    for w in range(num_workers - 1, 0, -1):
        low, high = 0, earliest[w + 1]
        while low < high:
            middle = (low + high) // 2
            if _time(sums, weights, speeds[w], middle, earliest[w + 1]) <= limit:
                high = middle
            else:
                low = middle + 1
        earliest[w] = low
    bounds = np.zeros(num_workers + 1, dtype=np.int64)
    bounds[num_workers] = num_vertices
    for w in range(num_workers - 1):
        last = _furthest(sums, weights, speeds[w], limit, bounds[w], bounds[w], num_vertices)
        bounds[w + 1] = min(max(wanted[w + 1], earliest[w + 1], bounds[w]), last)
    return bounds
