"""The cheapest set of nodes that separates a graph's origins from its readers.

Minimum vertex cut by augmenting paths (Edmonds and Karp): a node's capacity is its cost, edges between nodes are
unlimited. Of several cheapest cuts the one nearest to the readers is taken.
"""

from __future__ import annotations

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
        costs: of choosing each node, not negative.
        operands: the nodes that each node reads; an origin has none.
        readers: the nodes whose values are needed.
    Returns:
        The chosen nodes; they may be readers or origins themselves.
    """
    # Every node is an arc from its entry (node, 0) to its exit (node, 1).
    source, sink = ("source", -1), ("sink", -1)
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
    while path := _path(capacity, source, sink):
        flow = min(capacity[a][b] for a, b in path)
        for a, b in path:
            capacity[a][b] -= flow
            capacity[b][a] += flow
    near = _reaching(capacity, sink)
    return {node for node in costs if (node, 1) in near and (node, 0) not in near}


def _connect(capacity: dict[object, dict[object, int]], a: object, b: object, limit: int) -> None:
    capacity[a][b] = limit
    capacity[b].setdefault(a, 0)


def _path(capacity: dict[object, dict[object, int]], source: object, sink: object) -> list[tuple[object, object]]:
    """A shortest path with capacity left, as arcs; empty where there is none."""
    before: dict[object, object] = {source: source}
    queue = deque([source])
    while queue and sink not in before:
        here = queue.popleft()
        for there, left in capacity[here].items():
            if left > 0 and there not in before:
                before[there] = here
                queue.append(there)
    path: list[tuple[object, object]] = []
    here = sink
    while here in before and here != source:
        path.append((before[here], here))
        here = before[here]
    return path[::-1]


def _reaching(capacity: dict[object, dict[object, int]], sink: object) -> set[object]:
    """What can still send flow to the sink."""
    found, pending = {sink}, [sink]
    while pending:
        here = pending.pop()
        for there in capacity[here]:
            if there not in found and capacity[there][here] > 0:
                found.add(there)
                pending.append(there)
    return found
