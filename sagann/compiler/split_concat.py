"""Split: a linear map of a concatenation becomes the sum of linear maps of its parts.

``linear(cat(src, dst), W)`` is ``linear(src, W[:, :k]) + linear(dst, W[:, k:])``. The terms can be hoisted, so an edge
network multiplies no matrix on the edges. The bias is added to the first term that leaves the edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from sagann.compiler.operators import LINEAR
from sagann.compiler.program import Note
from sagann.compiler.rewrite import insert, linear_parts, only_user, operands_of, shape_of, width

_aten = torch.ops.aten


def split_concat(module: fx.GraphModule) -> list[Note]:
    """Split the maps of a classified graph, in place; returns what was done."""
    notes = []
    for node in list(module.graph.nodes):
        parts = _parts(node)
        if parts:
            _split(module, node, parts)
            ends = ", ".join(sorted({part.meta["place"] for part in parts}))
            notes.append(
                Note(kind="split", text=f"a linear map of a concatenation ({ends})", line=node.meta["line"])
            )
    if notes:
        module.graph.eliminate_dead_code()
    return notes


def _parts(node: fx.Node) -> list[fx.Node]:
    """The parts of a linear map's concatenated operand, if the parts have different places."""
    linear = linear_parts(node)
    if linear is None or node.meta["place"] != "edge" or linear[0].target is not _aten.cat.default:
        return []
    values: Any = linear[0].args[0]
    dim = linear[0].args[1] if len(linear[0].args) > 1 else 0
    if dim not in (1, -1):
        return []
    parts = [value for value in values if width(value)]
    # A concatenation promotes its parts to one type, a matrix product does not.
    if any(part.meta["val"].dtype != node.meta["val"].dtype for part in parts):
        return []
    return parts if len({part.meta["place"] for part in parts}) > 1 else []


def _split(module: fx.GraphModule, node: fx.Node, parts: list[fx.Node]) -> None:
    weight, start, bias = node.args[1], 0, _bias_of(node)
    with module.graph.inserting_before(node if bias is None else bias[0]):
        terms = []
        for part in parts:
            piece = insert(module, node, _aten.slice.Tensor, weight, 1, start, start + width(part))
            terms.append(insert(module, node, LINEAR, part, piece))
            start += width(part)
        terms.sort(key=lambda term: term.meta["place"] in ("edge", "constant"))
        if bias is not None:
            terms[0] = insert(module, node, _aten.add.Tensor, terms[0], bias[1])
        # Terms of one end come first, so that their sum is computed there. A constant term is added to the first of them.
        terms.sort(key=lambda term: ("src", "constant", "dst", "edge").index(term.meta["place"]))
        total = terms[0]
        for term in terms[1:]:
            total = insert(module, node, _aten.add.Tensor, total, term)
    (node if bias is None else bias[0]).replace_all_uses_with(total)


def _bias_of(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The node that adds a bias to a linear map, if nothing else reads the map; and the bias."""
    user = only_user(node)
    terms = None if user is None else operands_of(user, _aten.add.Tensor)
    if user is None or terms is None:
        return None
    bias = terms[1] if terms[0] is node else terms[0]
    return (user, bias) if bias.meta["place"] == "param" and len(shape_of(bias)) <= 1 else None
