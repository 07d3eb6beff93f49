"""The specification of a layer's graph, executable: what every pass may rely on and must leave true.

One ``sagann::gather`` node stands between the edges and the vertices. Placeholders are parameters, ``src``,
``dst`` and ``data``. Every node knows its value's form, its place, its phase and the user's line; a place is what
:func:`sagann.compiler.classify.place_of` says, and what is computed before the gather never reads what comes after.
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
    if node.op == "placeholder" and node.meta["parameter"] is None and node.target not in ("src", "dst", "data"):
        raise ValueError(f"placeholder '{node.name}' is neither a parameter nor src, dst or data")
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
