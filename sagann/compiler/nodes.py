"""Nodes of a traced graph: where each can be computed, which patterns they form, and how passes insert new ones.

The place of a node follows from what it depends on:

- ``param``: parameters, or means over all edges, alone.
- ``src``, ``dst``: rows of one end, and parameters. The node is computed once per vertex.
- ``edge``: edge data, both ends, or random numbers of an edge.
- ``vertex``: gathered rows, or random numbers of a vertex.
- ``constant``: the number of rows, and parameters. The node is computed again wherever it is read.

References:
    Ma et al., NGra, 2018, Sec. 3.2: the analysis before operator hoisting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from sagann.compiler.operators import DROPOUT, EDGE_MEANS, GATHER, LINEAR
from sagann.compiler.trace import ROWS, TraceError, is_of_rows, is_rows
from sagann.kernels.accumulators import Gathering, gathering

Place = Literal["param", "src", "dst", "edge", "vertex", "constant"]


def classify(module: fx.GraphModule) -> None:
    """Give every node of the graph its ``meta["place"]``."""
    for node in module.graph.nodes:
        node.meta["place"] = place_of(node)


def place_of(node: fx.Node) -> Place:
    """The place that follows from the node's own kind and the places of its arguments."""
    if node.op == "placeholder":
        if node.meta["parameter"] is not None:
            return "param"
        end: Place = node.meta["input"].end
        return end
    if node.op == "get_attr" or node.target is EDGE_MEANS:
        return "param"
    if node.op == "output" or node.target is GATHER:
        return "vertex"
    places = {argument.meta["place"] for argument in node.all_input_nodes} - {"constant"}
    # Dropout of a parameter is drawn once, for all rows.
    if is_random(node) and (has_rows(node) or not places <= {"param"}):
        return "edge" if node.meta["phase"] == "edge" else "vertex"
    if "vertex" in places:
        return "vertex"
    if places <= {"param"}:
        from_constant = any(argument.meta["place"] == "constant" for argument in node.all_input_nodes)
        return "constant" if from_constant or has_rows(node) else "param"
    places -= {"param"}
    return places.pop() if len(places) == 1 else "edge" if node.meta["phase"] == "edge" else "vertex"


def is_random(node: fx.Node) -> bool:
    """Whether the node draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return node.target is DROPOUT or torch.Tag.nondeterministic_seeded in tags


def has_tensor(node: fx.Node) -> bool:
    """Whether the node's value is a tensor, or several tensors."""
    return bool(_tensors(node))


def has_row_each(node: fx.Node) -> bool:
    """Whether the node's tensors have one row for each vertex or edge, as their first dimension."""
    return all(map(is_of_rows, _tensors(node)))


def has_rows(node: fx.Node) -> bool:
    """Whether one of the node's tensors has rows, in any dimension."""
    return any(is_rows(size) for tensor in _tensors(node) for size in tensor.shape)


def _tensors(node: fx.Node) -> list[Tensor]:
    value = node.meta.get("val")
    return [each for each in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(each, Tensor)]


def row_bytes(node: fx.Node) -> int:
    """Bytes of one row of the node's value."""
    value = node.meta["val"]
    size = value.element_size()
    for dim in value.shape:
        size *= dim // ROWS if is_rows(dim) else dim
    return size


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
    return reached(wanted, lambda node: () if node in given else node.all_input_nodes)


def reached(wanted: Iterable[fx.Node], read: Callable[[fx.Node], Iterable[fx.Node]]) -> dict[fx.Node, None]:
    """``wanted`` and all nodes that they lead to, if each leads to those that ``read`` gives of it."""
    found: dict[fx.Node, None] = {}
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending += read(node)
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
