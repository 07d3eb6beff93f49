"""Distribute: a linear map of a sum whose constants a parameter scales becomes the sum of linear maps.

``W (s x + y) = s (W x) + W y`` for a number s. As GIN writes it (s is 1 + eps), the gradient of s takes that of the
wide sum: a product as wide as the features, and wide tensors. Where x and y are constant, W x is all that s needs.

References:
    Ours; Ma et al., NGra, 2018, Sec. 3.2 moves operators within the edge stage only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from sagann.compiler.commute import one_dtype
from sagann.compiler.program import Note
from sagann.compiler.rewrite import insert, is_constant, linear_parts, width

_aten = torch.ops.aten


def distribute(module: fx.GraphModule) -> list[Note]:
    """Rewrite the graph of a layer whose features are constant, in place; returns what was done."""
    notes = []
    for node in list(module.graph.nodes):
        linear = linear_parts(node)
        if linear is None or linear[0].target is not _aten.add.Tensor or linear[0].kwargs:
            continue
        total, weight = linear
        terms = [_scaled(term, total) for term in total.args]
        if len(total.users) != 1 or None in terms or all(number is None for _, number in filter(None, terms)):
            continue
        # There is one product more, which the wide tensors must outweigh.
        if 2 * width(node) > width(total) or not one_dtype(node, weight, *(row for row, _ in filter(None, terms))):
            continue
        with module.graph.inserting_before(node):
            mapped = [_mapped(module, node, weight, row, number) for row, number in filter(None, terms)]
            node.replace_all_uses_with(insert(module, node, _aten.add.Tensor, *mapped))
        text = "a linear map of constants that a parameter scales: each summand is mapped"
        notes.append(Note(kind="split", text=text, line=node.meta["line"]))
    module.graph.eliminate_dead_code()
    return notes


def _scaled(term: Any, total: fx.Node) -> tuple[fx.Node, fx.Node | None] | None:
    """A constant row and the number that scales it, if any; None for anything else."""
    if not isinstance(term, fx.Node) or term.meta["val"].shape != total.meta["val"].shape:
        return None
    if is_constant(term):
        return term, None
    if term.target is not _aten.mul.Tensor or len(term.all_input_nodes) != 2:
        return None
    for number, row in (term.args, term.args[::-1]):
        assert isinstance(number, fx.Node)
        assert isinstance(row, fx.Node)
        one = number.meta["place"] == "param" and number.meta["val"].ndim == 0
        if one and is_constant(row) and row.meta["val"].shape == term.meta["val"].shape:
            return row, number
    return None


def _mapped(
    module: fx.GraphModule, node: fx.Node, weight: fx.Node, row: fx.Node, number: fx.Node | None
) -> fx.Node:
    mapped = insert(module, node, node.target, row, weight)
    return mapped if number is None else insert(module, node, _aten.mul.Tensor, mapped, number)
