"""Hoist: where the work of vertices ends and that of edges begins.

Whatever depends on one end of an edge alone can be computed once per vertex. The edges then read its result, so a
node is left on the edges where that makes them read fewer bytes: a cheap pointwise operator that widens its row, or
one whose operands the edges read anyway (a minimum cut). Matrix products and costly functions always leave.

References:
    Ma et al., NGra, 2018, Sec. 3.2: operators on vertices leave the edge stage. We differ in leaving some of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from sagann.compiler.classify import has_row_each, has_tensor, row_bytes
from sagann.compiler.min_cut import min_cut
from sagann.compiler.rewrite import gathered

_aten = torch.ops.aten
# No dearer at an edge than the read it saves.
_CHEAP = frozenset(
    [
        _aten.add,
        _aten.sub,
        _aten.mul,
        _aten.neg,
        _aten.abs,
        _aten.relu,
        _aten.where,
        _aten.maximum,
        _aten.minimum,
        _aten.lt,
        _aten.le,
        _aten.gt,
        _aten.ge,
        _aten.eq,
        _aten.ne,
        _aten.clamp,
        _aten.clamp_min,
        _aten.clamp_max,
        _aten.leaky_relu,
        _aten.view,
        _aten.reshape,
        _aten.unsqueeze,
        _aten.squeeze,
        _aten.expand,
        _aten.permute,
        _aten.transpose,
        _aten.slice,
        _aten.select,
        _aten.cat,
        _aten._to_copy,
        _aten.clone,
        _aten.alias,
        _aten.masked_fill,
    ]
)


def hoist(module: fx.GraphModule, *, enabled: bool = True) -> list[fx.Node]:
    """Decide what the edges compute, and return the nodes that they read: the frontier.

    A node that the edges compute and the vertices need as well gets computed twice.

    Args:
        module: a classified graph.
        enabled: if False, the edges compute all that ApplyEdge says, from the raw rows.
    """
    values = gathered(module)
    frontier: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    pending = list(values)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if on_edges(node, enabled):
            pending += _operands(node)
        else:
            frontier[node] = None
    if enabled:
        frontier = dict.fromkeys(_cheapest(frontier))
    order = {node: index for index, node in enumerate(module.graph.nodes)}
    return sorted(frontier, key=order.__getitem__)


def on_edges(node: fx.Node, enabled: bool) -> bool:
    """Whether the node must be computed on the edges."""
    if node.op in ("placeholder", "get_attr"):
        return False
    if node.meta["place"] in ("src", "dst"):
        # What edges read of an end is looked up by its number.
        return not enabled or not has_row_each(node)
    return node.meta["place"] in ("edge", "constant")


def _cheapest(frontier: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes to read instead, such that an edge reads the fewest bytes."""
    operands: dict[fx.Node, list[fx.Node]] = {}
    pending = list(frontier)
    while pending:
        node = pending.pop()
        if node not in operands:
            operands[node] = _operands(node) if _may_sink(node) else []
            pending += operands[node]
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
