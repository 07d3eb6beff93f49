"""Rewrite: helpers of the passes that change a graph. They insert nodes with their meta, and recognise patterns."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from sagann.compiler.classify import is_random, place_of
from sagann.compiler.operators import GATHER, LINEAR
from sagann.compiler.trace import TraceError
from sagann.kernels.accumulators import Gathering, gathering


def insert(module: fx.GraphModule, like: fx.Node, target: Any, *args: Any) -> fx.Node:
    """Add a node with value and place at the current insertion point; phase and line are those of ``like``."""
    node = module.graph.call_function(target, args)
    values = fx.node.map_arg(args, lambda argument: argument.meta["val"])
    fake = next(
        arg.meta["val"] for arg in node.all_input_nodes if isinstance(arg.meta["val"], FakeTensor)
    ).fake_mode
    with fake, torch.no_grad():
        node.meta["val"] = target(*values)
    node.meta |= {"phase": like.meta["phase"], "line": like.meta["line"], "parameter": None}
    node.meta["place"] = place_of(node)
    return node


def gather_of(module: fx.GraphModule) -> fx.Node:
    """The gather node, which stands between the edges and the vertices; :class:`TraceError` where no result depends on it."""
    for node in module.graph.nodes:
        if node.target is GATHER:
            return node
    raise TraceError("apply_vertex does not read what was gathered")


def gathering_of(gather: fx.Node) -> Gathering:
    """The accumulators of a gather node."""
    _, accumulator, max_degree = gather.args
    assert isinstance(accumulator, str)
    assert isinstance(max_degree, int)
    return gathering(accumulator, max_degree)


def gathered(gather: fx.Node) -> list[fx.Node]:
    """The message, or score and value: what a gather node reads."""
    values: Any = gather.args[0]
    return list(values)


def only_user(node: fx.Node) -> fx.Node | None:
    """The one node that reads a node; None if there are none or several."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def operands_of(node: fx.Node, target: Any) -> tuple[fx.Node, fx.Node] | None:
    """The operands of an operator on two different nodes, if that is what the node is."""
    if node.target is not target or node.kwargs or len(node.all_input_nodes) != 2:
        return None
    first, second = node.args
    assert isinstance(first, fx.Node)
    assert isinstance(second, fx.Node)
    return first, second


def linear_parts(node: object) -> tuple[fx.Node, fx.Node] | None:
    """Operand and weight of a linear map of rows of features by a parameter; None for other nodes."""
    found = operands_of(node, LINEAR) if isinstance(node, fx.Node) else None
    is_map = found is not None and found[1].meta["place"] == "param" and len(shape_of(found[0])) == 2
    return found if is_map else None


def leading_to(wanted: Iterable[fx.Node], given: Collection[fx.Node] = ()) -> dict[fx.Node, None]:
    """``wanted`` and all nodes that they depend on; the search stops at ``given``."""
    found: dict[fx.Node, None] = {}
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending += [] if node in given else node.all_input_nodes
    return found


def is_constant(node: fx.Node) -> bool:
    """Whether the node depends on no parameter and no random number."""
    return not any(
        is_random(each) or (each.op == "placeholder" and each.meta["parameter"] is not None)
        for each in leading_to([node])
    )


def parameters_first(module: fx.GraphModule, node: fx.Node, before: fx.Node) -> None:
    """Move a node that depends on parameters alone, with all nodes that it depends on, before another."""
    needed = leading_to([node])
    order = list(module.graph.nodes)
    late = order[order.index(before) :]
    for current in order:
        if current in needed and current in late:
            before.prepend(current)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Shape of a node's tensor."""
    return tuple(node.meta["val"].shape)


def width(node: fx.Node) -> int:
    """Size of the last dimension."""
    return shape_of(node)[-1]


def one_dtype(*values: Any) -> bool:
    """Whether nodes have one type. A matrix product, unlike a sum, does not promote its operands."""
    return len({value.meta["val"].dtype for value in values if isinstance(value, fx.Node)}) == 1


def name_of(node: fx.Node) -> str:
    """A short name for the node's operator."""
    schema = getattr(node.target, "_schema", None)
    return (
        schema.name.partition("::")[2] if schema is not None else str(getattr(node.target, "__name__", node.target))
    )
