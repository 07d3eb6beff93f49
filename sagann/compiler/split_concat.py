"""Split: a linear map of a concatenation becomes the sum of linear maps of its parts.

``linear(cat(src, dst), W)`` is ``linear(src, W[:, :k]) + linear(dst, W[:, k:])``, whose terms can be hoisted; an
edge network in the form that most people write it would otherwise multiply matrices on every edge. The bias joins
the first term that leaves the edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from sagann.compiler.operators import LINEAR
from sagann.compiler.program import Note
from sagann.compiler.rewrite import insert, linear_parts, width

_aten = torch.ops.aten


def split_concat(module: fx.GraphModule) -> list[Note]:
    """Rewrite the graph in place; returns what was done."""
    notes = []
    for node in list(module.graph.nodes):
        parts = _parts(node)
        if parts:
            _split(module, node, parts)
            ends = ", ".join(sorted({part.meta["place"] for part in parts}))
            notes.append(
                Note(kind="split", text=f"a linear map of a concatenation ({ends})", line=node.meta["line"])
            )
    module.graph.eliminate_dead_code()
    return notes


def _parts(node: fx.Node) -> list[fx.Node]:
    """The concatenated operands of a linear map, where they stand in several places."""
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
    (_, weight), start = linear_parts(node) or (None, None), 0
    assert weight is not None
    bias = _bias_of(node)
    with module.graph.inserting_before(node if bias is None else bias[0]):
        terms = []
        for part in parts:
            dim = 1 if node.target is LINEAR else 0
            piece = insert(module, node, _aten.slice.Tensor, weight, dim, start, start + width(part))
            terms.append(insert(module, node, node.target, part, piece))
            start += width(part)
        terms.sort(key=lambda term: term.meta["place"] in ("edge", "constant"))
        if bias is not None:
            terms[0] = insert(module, node, _aten.add.Tensor, terms[0], bias[1])
        # Terms of one end first, so that their sum is computed there; what has the same row everywhere joins the first.
        terms.sort(key=lambda term: ("src", "constant", "dst", "edge").index(term.meta["place"]))
        total = terms[0]
        for term in terms[1:]:
            total = insert(module, node, _aten.add.Tensor, total, term)
    (node if bias is None else bias[0]).replace_all_uses_with(total)


def _bias_of(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The node that adds a bias to a linear map's only use, and the bias."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    if user.target is not _aten.add.Tensor or user.kwargs or len(user.all_input_nodes) != 2:
        return None
    bias = user.args[1] if user.args[0] is node else user.args[0]
    if not isinstance(bias, fx.Node) or bias.meta["place"] != "param":
        return None
    return (user, bias) if bias.meta["val"].ndim <= 1 else None
