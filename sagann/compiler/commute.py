"""Commute: a linear map and a sum over edges change places where that moves fewer bytes.

``W (sum of c_e x_e) = sum of c_e (W x_e)`` for numbers c_e, so a linear map that opens ApplyVertex may be applied
to the sources before they are gathered (narrower rows travel over the edges), and one in ApplyEdge to what was
gathered (wider rows do not). Where x is constant, what is gathered from it is too, so the map goes last and the
gather is done once. A sum with the vertex's own row in between (GIN) is distributed over where the map halves the
width at least; even of constants the map goes first then, if a parameter scales the vertex's row: its gradient would
take that of the wide sum, a product that costs more than gathering narrow rows anew.

References:
    Ma et al., NGra, 2018, Sec. 3.2. PyTorch Geometric fixes one order per layer; here the widths decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from sagann.compiler.program import Note
from sagann.compiler.rewrite import (
    gather_of,
    gathering_of,
    insert,
    is_constant,
    linear_parts,
    one_dtype,
    parameters_first,
    width,
)
from sagann.compiler.scale import scaled

_aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message that is linear in one row of the source: the row, times or divided by a number."""

    row: fx.Node
    operator: Any
    "Operator of the message, or None where the message is the row itself."
    number: fx.Node | None


def commute(
    module: fx.GraphModule, *, keep_constant: bool, map_first: bool = True, at_any_width: bool = False
) -> list[Note]:
    """Rewrite the graph in place; returns what was done.

    Args:
        module: a classified graph.
        keep_constant: what is gathered from constant rows is kept, so it should not depend on parameters.
        map_first: the map may move before the gather. Not so where there are many more sources than destinations.
        at_any_width: the map does so even where it widens the rows: what it maps is read by linear maps alone.
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
    module.graph.eliminate_dead_code()
    return notes


def message_of(node: Any) -> Message | None:
    """The message as a row of the source, or one times a number; None where it is neither."""
    assert isinstance(node, fx.Node)
    if node.meta["val"].ndim != 2:
        return None
    if node.meta["place"] == "src":
        return Message(row=node, operator=None, number=None)
    if node.target not in (_aten.mul.Tensor, _aten.div.Tensor) or len(node.all_input_nodes) != 2 or node.kwargs:
        return None
    row, number = node.args
    assert isinstance(row, fx.Node)
    assert isinstance(number, fx.Node)
    if node.target is _aten.mul.Tensor and not _is_row(row, node):
        row, number = number, row
    # Row and number are both the source's where a map picked by type made the row.
    is_number = (
        number.meta["place"] in ("edge", "dst", "src") and number.meta["val"].ndim == 2 and width(number) == 1
    )
    return Message(row=row, operator=node.target, number=number) if _is_row(row, node) and is_number else None


def _is_row(row: fx.Node, message: fx.Node) -> bool:
    return row.meta["place"] == "src" and row.meta["val"].shape == message.meta["val"].shape


def gathered_rows(module: fx.GraphModule, gather: fx.Node, message: Message, row: fx.Node) -> fx.Node:
    """The same gather of another row."""
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
        mapped = insert(module, gather, message.row.target, gathered, weight)
    gather.replace_all_uses_with(mapped)
    why = "the gather is constant" if becomes_constant else f"{width(x)} features travel, not {width(message.row)}"
    return [Note(kind="commuted", text=f"linear map after the gather: {why}", line=message.row.meta["line"])]


def _map_first(
    module: fx.GraphModule, gather: fx.Node, message: Message, *, kept: bool, at_any_width: bool
) -> list[Note]:
    reader = _only_user(gather)
    if reader is None:
        return []
    other = None
    if reader.target is _aten.add.Tensor and not reader.kwargs and _only_user(reader) is not None:
        other = reader.args[1] if reader.args[0] is gather else reader.args[0]
    if other is gather:
        return []
    target = reader if other is None else _only_user(reader)
    linear = linear_parts(target)
    if target is None or linear is None or linear[0] is not (gather if other is None else reader):
        return []
    weight = linear[1]
    if not one_dtype(gather, target, weight, other):
        return []
    # A second product, for the other summand, must pay as well.
    factor = 1 if other is None else 2
    if other is not None and not (
        isinstance(other, fx.Node) and other.meta["val"].shape == gather.meta["val"].shape
    ):
        return []
    if kept and (other is None or scaled(other)[1] is None):
        return []
    if not at_any_width and factor * width(target) > width(gather) - (1 if other is None else 0):
        return []
    parameters_first(module, weight, gather)
    with module.graph.inserting_before(gather):
        row = insert(module, message.row, target.target, message.row, weight)
        row.meta["phase"], row.meta["line"] = "edge", target.meta["line"]
        gathered = gathered_rows(module, gather, message, row)
    if other is not None:
        with module.graph.inserting_before(target):
            mapped = insert(module, target, target.target, other, weight)
            gathered = insert(module, target, _aten.add.Tensor, mapped, gathered)
    target.replace_all_uses_with(gathered)
    text = f"linear map before the gather: {width(target)} features travel, not {width(gather)}"
    return [Note(kind="commuted", text=text, line=target.meta["line"])]


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
