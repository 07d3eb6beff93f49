"""Classify: where each node of a traced layer can be computed. The place follows from what the node depends on.

- ``param``: parameters, or means over all edges, alone.
- ``src``, ``dst``: rows of one end, and parameters. The node is computed once per vertex.
- ``edge``: edge data, both ends, or random numbers of an edge.
- ``vertex``: gathered rows, or random numbers of a vertex.
- ``constant``: the number of rows, and parameters. The node is computed again wherever it is read.

References:
    Ma et al., NGra, 2018, Sec. 3.2: the analysis before operator hoisting.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, fx

from sagann.compiler.operators import DROPOUT, EDGE_MEANS, GATHER
from sagann.compiler.trace import ROWS, is_of_rows, is_rows

Place = Literal["param", "src", "dst", "edge", "vertex", "constant"]


def classify(module: fx.GraphModule) -> None:
    """Give every node of the graph its ``meta["place"]``."""
    for node in module.graph.nodes:
        node.meta["place"] = place_of(node)


def place_of(node: fx.Node) -> Place:
    """The place that follows from the node's own kind and the places of its arguments."""
    if node.op == "placeholder":
        if node.meta["parameter"] is not None:
            return "param"
        end: Place = node.meta["input"].end
        return end
    if node.op == "get_attr" or node.target is EDGE_MEANS:
        return "param"
    if node.op == "output" or node.target is GATHER:
        return "vertex"
    places = {argument.meta["place"] for argument in node.all_input_nodes} - {"constant"}
    # Dropout of a parameter is drawn once, for all rows.
    if is_random(node) and (has_rows(node) or not places <= {"param"}):
        return "edge" if node.meta["phase"] == "edge" else "vertex"
    if "vertex" in places:
        return "vertex"
    if places <= {"param"}:
        from_constant = any(argument.meta["place"] == "constant" for argument in node.all_input_nodes)
        return "constant" if from_constant or has_rows(node) else "param"
    places -= {"param"}
    return places.pop() if len(places) == 1 else "edge" if node.meta["phase"] == "edge" else "vertex"


def is_random(node: fx.Node) -> bool:
    """Whether the node draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return node.target is DROPOUT or torch.Tag.nondeterministic_seeded in tags


def has_tensor(node: fx.Node) -> bool:
    """Whether the node's value is a tensor, or several tensors."""
    return bool(_tensors(node))


def has_row_each(node: fx.Node) -> bool:
    """Whether the node's tensors have one row for each vertex or edge, as their first dimension."""
    return all(map(is_of_rows, _tensors(node)))


def has_rows(node: fx.Node) -> bool:
    """Whether one of the node's tensors has rows, in any dimension."""
    return any(is_rows(size) for tensor in _tensors(node) for size in tensor.shape)


def _tensors(node: fx.Node) -> list[Tensor]:
    value = node.meta.get("val")
    return [each for each in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(each, Tensor)]


def row_bytes(node: fx.Node) -> int:
    """Bytes of one row of the node's value."""
    value = node.meta["val"]
    size = value.element_size()
    for dim in value.shape:
        size *= dim // ROWS if is_rows(dim) else dim
    return size
