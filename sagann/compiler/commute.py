"""Commute: a linear map changes places with a sum over edges, or with a parameter that scales its operand.

``W (sum of c_e x_e) = sum of c_e (W x_e)`` for numbers c_e. The order that moves narrower rows over the edges is taken: a
map that opens ApplyVertex moves before the gather, to the sources, or a map in ApplyEdge moves after the gather.

- If x is constant, the map goes last: what is gathered is constant too, and is gathered once.
- A sum with the vertex's own row (GIN) is distributed if the map at least halves the width. If a parameter scales the
  vertex's row, the map goes first even for constant x: the scale's gradient would otherwise take the gradient of the wide
  sum, a product that costs more than gathering narrow rows again.
- ``W (s x) = s (W x)`` for a parameter s (1 + eps of GIN): the map goes first, for the same reason.

Before that, a linear map of a concatenation becomes the sum of linear maps of its parts (:func:`split_concat`): ``linear(cat(src, dst), W)`` is
``linear(src, W[:, :k]) + linear(dst, W[:, k:])``. The terms can be hoisted, so an edge network multiplies no matrix on the edges. The bias is
added to the first term that leaves the edges.

References:
    Ma et al., NGra, 2018, Sec. 3.2. PyTorch Geometric fixes one order per layer; here the widths decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from sagann.compiler.nodes import (
    gather_of,
    gathering_of,
    insert,
    is_constant,
    linear_parts,
    one_dtype,
    only_user,
    operands_of,
    parameters_first,
    shape_of,
    width,
)
from sagann.compiler.operators import LINEAR
from sagann.compiler.program import Note

_aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message that is linear in one row of the source: the row, times or divided by a number."""

    row: fx.Node
    operator: Any
    "Operator of the message; None if the message is the row itself."
    number: fx.Node | None


def commute(
    module: fx.GraphModule, *, keep_constant: bool, map_first: bool = True, at_any_width: bool = False
) -> list[Note]:
    """Let a linear map and the gather change places in a classified graph; gives what was done.

    With ``keep_constant``, rows gathered from constant rows are kept, so that they should not depend on parameters. ``map_first`` lets the map
    move before the gather, which it should not with many more sources than destinations; with ``at_any_width`` even if it widens the rows.
    """
    gather = gather_of(module)
    values = gather.args[0]
    if not gathering_of(gather).is_linear:
        return []
    assert isinstance(values, (list, tuple))
    message = message_of(values[0])
    if message is None or not one_dtype(values[0], message.row, message.number):
        return []
    notes = [] if at_any_width else _map_last(module, gather, message, keep_constant)
    if not notes and map_first:
        kept = keep_constant and is_constant(gather)
        notes = _map_first(module, gather, message, kept=kept, at_any_width=at_any_width)
    if notes:
        module.graph.eliminate_dead_code()
    return notes


def message_of(node: Any) -> Message | None:
    """The message as a row of the source, or a row times a number; None if it is neither."""
    if len(shape_of(node)) != 2:
        return None
    if node.meta["place"] == "src":
        return Message(row=node, operator=None, number=None)
    operands = operands_of(node, _aten.mul.Tensor) or operands_of(node, _aten.div.Tensor)
    if operands is None:
        return None
    row, number = operands
    if node.target is _aten.mul.Tensor and not _is_row(row, node):
        row, number = number, row
    # The number is the source's if a map picked by edge type made the row.
    is_number = number.meta["place"] in ("edge", "dst", "src") and len(shape_of(number)) == 2 and width(number) == 1
    return Message(row=row, operator=node.target, number=number) if _is_row(row, node) and is_number else None


def _is_row(row: fx.Node, message: fx.Node) -> bool:
    return row.meta["place"] == "src" and shape_of(row) == shape_of(message)


def gathered_rows(module: fx.GraphModule, gather: fx.Node, message: Message, row: fx.Node) -> fx.Node:
    """Gather another row in the same way."""
    like = message.row
    value = row if message.operator is None else insert(module, like, message.operator, row, message.number)
    return insert(module, gather, gather.target, [value], *gather.args[1:])


def _map_last(module: fx.GraphModule, gather: fx.Node, message: Message, keep_constant: bool) -> list[Note]:
    linear = linear_parts(message.row)
    if linear is None or len(message.row.users) != 1 or linear[0].meta["place"] != "src":
        return []
    x, weight = linear
    if not one_dtype(message.row, x, weight):
        return []
    number_is_constant = message.number is None or is_constant(message.number)
    becomes_constant = keep_constant and is_constant(x) and number_is_constant
    if width(message.row) <= width(x) and not becomes_constant:
        return []
    with module.graph.inserting_before(gather):
        gathered = gathered_rows(module, gather, message, x)
        mapped = insert(module, gather, LINEAR, gathered, weight)
    gather.replace_all_uses_with(mapped)
    why = (
        "the gather is constant"
        if becomes_constant
        else f"{width(x)} features per edge instead of {width(message.row)}"
    )
    return [Note(kind="commuted", text=f"linear map after the gather: {why}", line=message.row.meta["line"])]


def _map_first(
    module: fx.GraphModule, gather: fx.Node, message: Message, *, kept: bool, at_any_width: bool
) -> list[Note]:
    """Map before the gather. ``other`` is the vertex's own row, added to what was gathered; None if there is none."""
    summed, other = only_user(gather), None
    if summed is not None and (terms := operands_of(summed, _aten.add.Tensor)) and only_user(summed) is not None:
        other = terms[1] if terms[0] is gather else terms[0]
    mapped_node = gather if other is None else summed
    target = None if mapped_node is None else only_user(mapped_node)
    linear = linear_parts(target)
    if target is None or linear is None or linear[0] is not mapped_node:
        return []
    weight = linear[1]
    if not one_dtype(gather, target, weight, other):
        return []
    if other is not None and shape_of(other) != shape_of(gather):
        return []
    if kept and (other is None or _scaled(other) is None):
        return []
    # Mapping the other summand is a second product, which must pay as well.
    pays = width(target) < width(gather) if other is None else 2 * width(target) <= width(gather)
    if not at_any_width and not pays:
        return []
    parameters_first(module, weight, gather)
    with module.graph.inserting_before(gather):
        row = insert(module, message.row, LINEAR, message.row, weight)
        row.meta["phase"], row.meta["line"] = "edge", target.meta["line"]
        gathered = gathered_rows(module, gather, message, row)
    if other is not None:
        with module.graph.inserting_before(target):
            mapped = insert(module, target, LINEAR, other, weight)
            gathered = insert(module, target, _aten.add.Tensor, mapped, gathered)
    target.replace_all_uses_with(gathered)
    text = f"linear map before the gather: {width(target)} features per edge instead of {width(gather)}"
    return [Note(kind="commuted", text=text, line=target.meta["line"])]


def scale_last(module: fx.GraphModule, *, at_any_width: bool = False) -> list[Note]:
    """Let a parameter scale the result of a linear map instead of its operand, at any width even if the map widens the rows."""
    notes = []
    for node in list(module.graph.nodes):
        linear = linear_parts(node)
        if linear is None or len(linear[0].users) != 1:
            continue
        if width(node) > width(linear[0]) and not at_any_width:
            continue
        found = _scaled(linear[0])
        if found is None or not one_dtype(node, linear[1], *found):
            continue
        row, number = found
        with module.graph.inserting_before(node):
            mapped = insert(module, node, LINEAR, row, linear[1])
            node.replace_all_uses_with(insert(module, node, _aten.mul.Tensor, mapped, number))
        text = "a linear map of what a parameter scales: scaled afterwards"
        notes.append(Note(kind="commuted", text=text, line=node.meta["line"]))
    if notes:
        module.graph.eliminate_dead_code()
    return notes


def _scaled(term: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """A row and the number that a parameter scales the row by; None for anything else."""
    operands = operands_of(term, _aten.mul.Tensor)
    for number, row in (operands, operands[::-1]) if operands is not None else ():
        is_number = number.meta["place"] == "param" and shape_of(number) == ()
        if is_number and shape_of(row) == shape_of(term):
            return row, number
    return None


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
