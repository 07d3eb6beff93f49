"""Minimum cut: the cheapest set of nodes that separates a graph's origins from its readers.

Augmenting paths (Edmonds and Karp) find the cut. A node's capacity is its cost; edges between nodes are unlimited. Of
several cheapest cuts, the one nearest to the readers is taken.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)
_UNLIMITED = 1 << 62


def min_cut(
    costs: Mapping[Node, int], operands: Mapping[Node, Collection[Node]], readers: Collection[Node]
) -> set[Node]:
    """Choose nodes such that every path from an origin to a reader's end passes a chosen one.

    Args:
        costs: cost of choosing each node, at least 0.
        operands: the nodes that each node reads; an origin has none.
        readers: the nodes whose values are needed.
    Returns:
        The chosen nodes; they may be readers or origins themselves.
    """
    # Every node is an arc from its entry (node, 0) to its exit (node, 1).
    source: object = ("source", -1)
    sink: object = ("sink", -1)
    capacity: dict[object, dict[object, int]] = {source: {}, sink: {}}
    for node in costs:
        capacity[node, 0], capacity[node, 1] = {}, {}
    for node, cost in costs.items():
        _connect(capacity, (node, 0), (node, 1), cost)
        for operand in operands[node]:
            _connect(capacity, (operand, 1), (node, 0), _UNLIMITED)
        if not operands[node]:
            _connect(capacity, source, (node, 0), _UNLIMITED)
    for node in readers:
        _connect(capacity, (node, 1), sink, _UNLIMITED)
    while source in (following := _following(capacity, sink)):
        path = [source]
        while path[-1] != sink:
            path.append(following[path[-1]])
        arcs = list(itertools.pairwise(path))
        flow = min(capacity[a][b] for a, b in arcs)
        for a, b in arcs:
            capacity[a][b] -= flow
            capacity[b][a] += flow
    return {node for node in costs if (node, 1) in following and (node, 0) not in following}


def _connect(capacity: dict[object, dict[object, int]], a: object, b: object, limit: int) -> None:
    capacity[a][b] = limit
    capacity[b].setdefault(a, 0)


def _following(capacity: dict[object, dict[object, int]], sink: object) -> dict[object, object]:
    """For every end of an arc from which flow can still reach the sink, the next one on a shortest way there."""
    following = {sink: sink}
    queue = deque([sink])
    while queue:
        here = queue.popleft()
        for there in capacity[here]:
            if there not in following and capacity[there][here] > 0:
                following[there] = here
                queue.append(there)
    return following
