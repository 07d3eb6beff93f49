"""Hoist: decide what vertices compute and what edges compute.

A value that depends on one end of an edge alone can be computed once per vertex; the edges then read its row. A cheap
pointwise operator stays on the edges if they read fewer bytes then: it widens its row, or the edges read its operands
anyway. A minimum cut finds the fewest bytes. Matrix products and costly functions always leave the edges.

References:
    Ma et al., NGra, 2018, Sec. 3.2: operators on vertices leave the edge stage. We differ in leaving some of them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import fx

from sagann.compiler.composites import most_entries
from sagann.compiler.nodes import gathered, has_row_each, has_tensor, insert, linear_parts, reached, row_bytes
from sagann.compiler.operators import BATCH_SCALES, EDGE_MEANS

_aten = torch.ops.aten
Node = TypeVar("Node", bound=Hashable)
_UNLIMITED = 1 << 62
# Computing one of these at an edge costs no more than the read that is saved.
_CHEAP = frozenset(
    getattr(_aten, name)
    for names in (
        "add sub mul neg abs relu leaky_relu where masked_fill maximum minimum clamp clamp_min clamp_max",
        "lt le gt ge eq ne",
        "view reshape unsqueeze squeeze expand permute transpose slice select cat _to_copy clone alias",
    )
    for name in names.split()
)


def hoist(gather: fx.Node, *, enabled: bool = True) -> list[fx.Node]:
    """The nodes that the edges read, in order: the frontier. The edges compute every node between the frontier and the gather.

    A node that both edges and vertices need is computed twice. Unless ``enabled``, all of ApplyEdge stays on the edges, which read raw
    rows then. Of what depends on means over all edges, the edges read the means alone.
    """
    seen = reached(gathered(gather), lambda node: _operands(node) if on_edges(node, enabled) else ())
    frontier = {node for node in seen if not on_edges(node, enabled)}
    if enabled:
        frontier = _cheapest(frontier)
    order = {node: index for index, node in enumerate(gather.graph.nodes)}
    if all(node.meta["place"] == "param" for node in frontier):
        # Edges that read nothing of their own count the rows of their sources.
        frontier |= {node for node in order if "input" in node.meta and node.meta["place"] == "src"}
    return sorted(_without_made_of_means(frontier, gather.graph), key=order.__getitem__)


def _without_made_of_means(frontier: Iterable[fx.Node], graph: fx.Graph) -> set[fx.Node]:
    """The frontier with means over all edges, and their scales, in the place of what depends on them and on parameters alone."""
    given = {node for node in graph.nodes if node.target in (EDGE_MEANS, BATCH_SCALES)}
    made: set[fx.Node] = set()
    for node in graph.nodes:
        if node.meta["place"] == "param" and not (given | made).isdisjoint(node.all_input_nodes):
            made.add(node)
    made -= given
    return reached(frontier, lambda node: _operands(node) if node in made else ()).keys() - made


def on_edges(node: fx.Node, enabled: bool) -> bool:
    """Whether the node must be computed on the edges."""
    if node.op in ("placeholder", "get_attr"):
        return False
    if node.meta["place"] in ("src", "dst"):
        # Edges look up rows of an end by the vertex's id.
        return not enabled or not has_row_each(node)
    return node.meta["place"] in ("edge", "constant")


def _cheapest(frontier: Iterable[fx.Node]) -> set[fx.Node]:
    """The frontier with which an edge reads the fewest bytes."""

    def read(node: fx.Node) -> list[fx.Node]:
        return _operands(node) if _may_sink(node) else []

    operands = {node: read(node) for node in reached(frontier, read)}
    # Parameters stay in the cache.
    costs = {node: 0 if node.meta["place"] == "param" else row_bytes(node) for node in operands}
    return min_cut(costs, operands, set(frontier))


def _operands(node: fx.Node) -> list[fx.Node]:
    return [argument for argument in node.all_input_nodes if has_tensor(argument)]


def _may_sink(node: fx.Node) -> bool:
    if node.op != "call_function" or node.meta["place"] not in ("src", "dst"):
        return False
    operands = _operands(node)
    constant = any(argument.meta["place"] == "constant" for argument in operands)
    of_rows = all(has_row_each(argument) for argument in operands if argument.meta["place"] in ("src", "dst"))
    cheap = getattr(node.target, "overloadpacket", None) in _CHEAP
    return cheap and isinstance(node.meta["val"], torch.Tensor) and of_rows and not constant


def transpose_matrices(module: fx.GraphModule) -> None:
    """Transpose the small matrices that edges multiply by before the pass instead of at every edge, in place: after the passes that
    take linear maps off the edges."""
    for node in list(module.graph.nodes):
        linear = linear_parts(node)
        if linear is None or node.meta["place"] != "edge":
            continue
        x, weight = linear
        if weight.meta["val"].numel() <= most_entries(weight.meta["val"].device):
            with module.graph.inserting_before(node):
                matrix = insert(module, node, _aten.t.default, weight)
                mapped = insert(module, node, _aten.mm.default, x, matrix)
            node.replace_all_uses_with(mapped)
            module.graph.erase_node(node)


def min_cut(
    costs: Mapping[Node, int], operands: Mapping[Node, Collection[Node]], readers: Collection[Node]
) -> set[Node]:
    """The nodes, at least cost, of which every path from an origin to a reader passes one; they may be readers or origins themselves.

    ``operands`` are the nodes that each node reads; an origin has none. Costs are at least 0. Augmenting paths (Edmonds and Karp) find the cut: a
    node's capacity is its cost, edges between nodes are unlimited. Of several cheapest cuts, the one nearest to the readers is taken.
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
