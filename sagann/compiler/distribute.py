"""Distribute: linear maps over sums of constants, and over numbers that a parameter gives.

``W (s x + y) = s (W x) + W y`` for a number s. As GIN writes it (s is 1 + eps), the gradient of s takes that of the
wide sum: a product as wide as the features, and wide tensors. Where x and y are constant, W x is all that s needs.
Where they are not, the sum is mapped by parts already if W went before the gather; then ``W (s x) = s (W x)`` lets
vertices read the product that the edges read.

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


def scale_last(module: fx.GraphModule) -> list[Note]:
    """Let a parameter scale what was mapped, not what is to be; rewrites the graph in place, returns what was done."""
    notes = []
    for node in list(module.graph.nodes):
        linear = linear_parts(node)
        if linear is None or width(node) > width(linear[0]) or len(linear[0].users) != 1:
            continue
        row, number = _factors(linear[0])
        if number is None or not one_dtype(node, linear[1], row, number):
            continue
        with module.graph.inserting_before(node):
            node.replace_all_uses_with(_mapped(module, node, linear[1], row, number))
        text = "a linear map of what a parameter scales: scaled afterwards"
        notes.append(Note(kind="commuted", text=text, line=node.meta["line"]))
    module.graph.eliminate_dead_code()
    return notes


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
    row, number = _factors(term)
    return (row, number) if is_constant(row) else None


def _factors(term: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """A row and the number that a parameter scales it by; the term itself and None for anything else."""
    if term.target is _aten.mul.Tensor and len(term.all_input_nodes) == 2:
        for number, row in (term.args, term.args[::-1]):
            assert isinstance(number, fx.Node)
            assert isinstance(row, fx.Node)
            one = number.meta["place"] == "param" and number.meta["val"].ndim == 0
            if one and row.meta["val"].shape == term.meta["val"].shape:
                return row, number
    return term, None


def _mapped(
    module: fx.GraphModule, node: fx.Node, weight: fx.Node, row: fx.Node, number: fx.Node | None
) -> fx.Node:
    mapped = insert(module, node, node.target, row, weight)
    return mapped if number is None else insert(module, node, _aten.mul.Tensor, mapped, number)
