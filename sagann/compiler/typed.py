"""Typed: linear maps picked by the edge's type leave the edges as well.

``typed_linear(src, type, maps)`` has as many distinct results as there are distinct pairs (source, type), so it is
computed once per pair, sorted by type: one matrix product per type. The edges then read their pair's row as they
read a source's. With a single type the pair is the source itself, and the map an ordinary one.

References:
    Ma et al., NGra, 2018, Fig. 12 (GG-NN).
"""

from __future__ import annotations

import torch
from torch import fx

from sagann.compiler.operators import TYPED_LINEAR
from sagann.compiler.program import Note, Typed
from sagann.compiler.rewrite import insert

_aten = torch.ops.aten


def map_single_types(module: fx.GraphModule) -> tuple[Typed | None, list[Note]]:
    """Turn maps of a single type into ordinary linear maps of the source's row, in place.

    Returns:
        What is to be checked of the types, and what was done.
    """
    notes = []
    for node in _leaving(module):
        x, _, weight = node.args
        assert isinstance(weight, fx.Node)
        if weight.meta["val"].shape[0] == 1:
            with module.graph.inserting_before(node):
                only = insert(module, node, _aten.select.int, weight, 0, 0)
                mapped = insert(module, node, _aten.mm.default, x, only)
            node.replace_all_uses_with(mapped)
            notes.append(Note(kind="typed", text="one type, so once per source", line=node.meta["line"]))
    module.graph.eliminate_dead_code()
    return (Typed(name="", x="", weight="", num_types=1) if notes else None), notes


def map_pairs(module: fx.GraphModule) -> tuple[Typed | None, list[Note]]:
    """Let one map of several types leave the edges: its result is read like a source's row, from now on.

    Returns:
        What is to be computed for every pair, and what was done.
    """
    node = next(iter(_leaving(module)), None)
    if node is None:
        return None, []
    x, _, weight = node.args
    assert isinstance(x, fx.Node)
    assert isinstance(weight, fx.Node)
    node.meta["place"] = "src"
    num_types = int(weight.meta["val"].shape[0])
    text = f"{num_types} maps, once per pair of source and type"
    typed = Typed(name=node.name, x=x.name, weight=weight.name, num_types=num_types)
    return typed, [Note(kind="typed", text=text, line=node.meta["line"])]


def _leaving(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if _leaves(node)]


def _leaves(node: fx.Node) -> bool:
    if node.target is not TYPED_LINEAR or node.meta["place"] != "edge":
        return False
    x, types, weight = node.all_input_nodes
    return x.meta["place"] == "src" and types.target == "data" and weight.meta["place"] == "param"
