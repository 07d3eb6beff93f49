"""Size check: a model may read the number of vertices as a size only.

A trace keeps the numbers that it was made with. Multiples of its number of rows are sizes, which stages read again when they
run. A root or an inverse of that number would stay constant. Two traces with different numbers of rows must therefore differ
in sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from sagann.compiler.rewrite import name_of
from sagann.compiler.trace import ROWS, TraceError, is_rows

OTHER_ROWS = 987_654_323
"Number of rows in the second trace."
CHANGES = "it does something else when it is traced again, with another number of vertices"


def check_sizes(module: fx.GraphModule, other: fx.GraphModule) -> None:
    """Refuse a model whose two traces differ in more than sizes.

    Args:
        module: traced with :data:`sagann.compiler.trace.ROWS` rows.
        other: traced with :data:`OTHER_ROWS`.
    Raises:
        TraceError: the traces differ; the message names the operator.
    """
    nodes = list(zip(module.graph.nodes, other.graph.nodes, strict=False))
    other_of = dict(nodes)
    of_one_kind = all(_kind(node) == _kind(again) for node, again in nodes)
    if len(module.graph.nodes) != len(other.graph.nodes) or not of_one_kind:
        raise TraceError(CHANGES)
    for node, again in nodes:
        read, read_again = _read(module, node), _read(other, again)
        if len(read) == len(read_again) and all(
            _is_same(a, b, other_of) for a, b in zip(read, read_again, strict=True)
        ):
            continue
        line = node.meta.get("stack_trace")
        raise TraceError(
            f"operator {name_of(node)} reads a number that depends on the number of vertices"
            + (f" ({line})" if line else "")
        )


def _kind(node: fx.Node) -> tuple[object, ...]:
    return (node.op, node.target) if node.op == "call_function" else (node.op,)


def _read(module: fx.GraphModule, node: fx.Node) -> list[Any]:
    """A node's arguments; or its value, if the node is a constant."""
    if node.op == "get_attr":
        return [getattr(module, str(node.target))]
    return pytree.tree_leaves((node.args, node.kwargs))


def _is_same(value: Any, again: Any, other_of: Mapping[fx.Node, fx.Node]) -> bool:
    if isinstance(value, fx.Node):
        return other_of[value] is again
    if is_rows(value):
        return bool(again == value // ROWS * OTHER_ROWS)
    if isinstance(value, Tensor):
        alike = (value == again) | ((value != value) & (again != again))
        return value.shape == again.shape and bool(alike.all())
    if isinstance(value, float):
        return value == again or (math.isnan(value) and math.isnan(again))
    return not isinstance(value, (bool, int, complex)) or bool(value == again)
