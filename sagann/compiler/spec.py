"""The specification of a layer's graph, executable: what every pass may rely on and must leave true.

A message program has any number of inputs: rows of vertices at either end of the edges, edge data, and parameters. One
``sagann::gather`` node stands between the edges and the vertices. It reads the values of all messages of an edge, each message
with accumulators of its own, and gives their results side by side. Every node knows the form of its value, its place, its phase
and the user's line; its place is :func:`sagann.compiler.classify.place_of`, and no node before the gather reads one after it.
"""

from __future__ import annotations

from torch import Tensor, fx

from sagann.compiler.classify import place_of
from sagann.compiler.operators import GATHER

PLACES = {"param", "src", "dst", "edge", "vertex", "constant"}


def verify(module: fx.GraphModule) -> None:
    """Check a layer's graph.

    Raises:
        ValueError: a rule is broken; the message names the node.
    """
    module.graph.lint()
    gathers = [node for node in module.graph.nodes if node.target is GATHER]
    if len(gathers) != 1:
        raise ValueError(f"{len(gathers)} gather nodes, expected 1")
    for node in module.graph.nodes:
        _verify_node(node)


def _verify_node(node: fx.Node) -> None:
    missing = [key for key in ("place", "phase", "line", "parameter") if key not in node.meta]
    if missing:
        raise ValueError(f"node '{node.name}' has no {missing[0]}")
    if node.op == "placeholder" and (node.meta["parameter"] is None) == ("input" not in node.meta):
        raise ValueError(f"placeholder '{node.name}' is neither a parameter nor an input of the layer, or both")
    if node.op in ("placeholder", "call_function") and not isinstance(node.meta.get("val"), (Tensor, tuple, list)):
        raise ValueError(f"node '{node.name}' has no value")
    if node.meta["place"] not in PLACES:
        raise ValueError(f"node '{node.name}' has the unknown place '{node.meta['place']}'")
    if node.meta["place"] != place_of(node):
        raise ValueError(
            f"node '{node.name}' is placed at '{node.meta['place']}', but it belongs to '{place_of(node)}'"
        )
    reads_ahead = any(argument.meta["phase"] == "vertex" for argument in node.all_input_nodes)
    # A map that commuted to the sources stands before the gather, and its weight was made after it.
    if node.meta["phase"] == "edge" and reads_ahead and node.meta["place"] not in ("param", "src"):
        raise ValueError(f"node '{node.name}' of the edges reads what was gathered")
