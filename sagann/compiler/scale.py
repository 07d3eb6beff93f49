"""Scale last: what a parameter scales is mapped first, ``W (s x) = s (W x)``.

As GIN writes it (s is 1 + eps), the gradient of s takes that of the row before the map: a product as wide as the
features. Scaled afterwards, it takes what was mapped; and where W went before the gather too, vertices read the product
that the edges read.

References:
    Ours; Ma et al., NGra, 2018, Sec. 3.2 moves operators within the edge stage only.
"""

from __future__ import annotations

import torch
from torch import fx

from sagann.compiler.program import Note
from sagann.compiler.rewrite import insert, linear_parts, one_dtype, width

_aten = torch.ops.aten


def scale_last(module: fx.GraphModule, *, at_any_width: bool = False) -> list[Note]:
    """Let a parameter scale what was mapped, not what is to be; rewrites the graph in place, returns what was done.

    Args:
        module: a classified graph.
        at_any_width: also where the map widens the rows.
    """
    notes = []
    for node in list(module.graph.nodes):
        linear = linear_parts(node)
        if linear is None or len(linear[0].users) != 1:
            continue
        if width(node) > width(linear[0]) and not at_any_width:
            continue
        row, number = scaled(linear[0])
        if number is None or not one_dtype(node, linear[1], row, number):
            continue
        with module.graph.inserting_before(node):
            mapped = insert(module, node, node.target, row, linear[1])
            node.replace_all_uses_with(insert(module, node, _aten.mul.Tensor, mapped, number))
        text = "a linear map of what a parameter scales: scaled afterwards"
        notes.append(Note(kind="commuted", text=text, line=node.meta["line"]))
    module.graph.eliminate_dead_code()
    return notes


def scaled(term: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """A row and the number that a parameter scales it by; the term itself and None for anything else."""
    if term.target is _aten.mul.Tensor and len(term.all_input_nodes) == 2:
        for number, row in (term.args, term.args[::-1]):
            assert isinstance(number, fx.Node)
            assert isinstance(row, fx.Node)
            one = number.meta["place"] == "param" and number.meta["val"].ndim == 0
            if one and row.meta["val"].shape == term.meta["val"].shape:
                return row, number
    return term, None
