"""Share: a value of the sources is not computed again for the destinations.

Destinations are the first of the sources. If a layer does the same to both ends of an edge (attention that projects both),
the destinations' rows are the first rows of the sources' result.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from torch import Tensor, fx

from sagann.compiler.classify import has_row_each, is_random


def shared_rows(
    module: fx.GraphModule, computed: Iterable[fx.Node], wanted: Iterable[fx.Node], given: Iterable[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """By node of the destinations that ``wanted`` depends on, the node of the sources with the same rows.

    Args:
        module: a classified graph.
        computed: nodes that are computed for the sources.
        wanted: nodes that must be computed.
        given: nodes at which the search stops.
    """
    numbers: dict[Hashable, int] = {}
    forms: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        form = _form(node, forms)
        forms[node] = numbers.setdefault(form, len(numbers))
    partners = {forms[node]: node for node in computed if node.op == "call_function"}
    shared: dict[fx.Node, fx.Node] = {}
    seen, pending = set(given), list(wanted)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        may_share = node.meta["place"] == "dst" and isinstance(node.meta["val"], Tensor) and has_row_each(node)
        partner = partners.get(forms[node]) if may_share else None
        if partner is not None:
            shared[node] = partner
        else:
            pending += node.all_input_nodes
    return shared


def _form(node: fx.Node, forms: dict[fx.Node, int]) -> Hashable:
    """A key that is equal for nodes that do the same to sources and to destinations."""
    given = node.meta.get("input")
    if node.op == "placeholder" and given is not None and given.end != "edge":
        return "rows of vertices", given.key
    # Every node draws its own random numbers.
    if node.op != "call_function" or is_random(node):
        return node

    def known(argument: Any) -> Any:
        return ("of node", forms[argument]) if isinstance(argument, fx.Node) else argument

    arguments = fx.node.map_aggregate((node.args, node.kwargs), known)
    return node.target, repr(arguments), str(node.meta["val"].dtype if hasattr(node.meta["val"], "dtype") else "")
