"""Typed: linear maps picked by the edge's type leave the edges as well, to either side of the gather.

*First*: ``typed_linear(src, type, maps)`` has as many distinct results as there are distinct pairs (source, type), so
it is computed once per pair, sorted by type: one matrix product per type. The edges then read their pair's row as
they read a source's. With a single type the pair is the source itself, and the map an ordinary one. A map of the
destination's row is computed once per pair (destination, type) where the accumulator is linear: the edges are gathered
for each pair then, and the pairs of a destination summed.

*Last*: ``sum of c_e A_t(e) x_e = sum over t of A_t (sum of c_e x_e over the edges of type t)`` for numbers c_e, so
where the accumulator is linear and the message is the mapped row times a number, the rows themselves may be gathered,
once per pair (destination, type), then mapped, and the pairs of a destination summed. If the rows are constant, so is
what is gathered.

Which of the two moves fewer bytes depends on the widths and on how many pairs a graph has, so both become programs and
:mod:`sagann.runtime.in_memory.typed_maps` takes one for each topology.

References:
    Ma et al., NGra, 2018, Fig. 12 (GG-NN) and Sec. 3.2. The paper maps on the edges.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from sagann.compiler.commute import gathered_rows, message_of
from sagann.compiler.nodes import classify, gather_of, gathering_of, insert, one_dtype, row_bytes
from sagann.compiler.operators import LINEAR, TYPED_LINEAR
from sagann.compiler.program import Note, Typed
from sagann.kernels.accumulators import SUM
from sagann.kernels.edge.function import End

_aten = torch.ops.aten


def map_single_types(module: fx.GraphModule, edge_type: int | None = None) -> tuple[Typed | None, list[Note]]:
    """Turn maps of a single type into ordinary linear maps of the vertex's row, in place; with ``edge_type``, the type of all edges,
    maps of several types as well. Gives what is to be checked of the types, and what was done."""
    notes = []
    types_name = ""
    for node in _leaving(module):
        x, types, weight = node.args
        end = _end_of(node)
        assert isinstance(types, fx.Node)
        assert isinstance(weight, fx.Node)
        if (edge_type is not None or weight.meta["val"].shape[0] == 1) and types_name in ("", types.name):
            types_name = types.name
            with module.graph.inserting_before(node):
                only = insert(module, node, _aten.select.int, weight, 0, edge_type or 0)
                mapped = insert(module, node, LINEAR, x, insert(module, node, _aten.t.default, only))
            node.replace_all_uses_with(mapped)
            notes.append(
                Note(
                    kind="typed",
                    text=f"one type, so once per {'source' if end == 'src' else 'destination'}",
                    line=node.meta["line"],
                )
            )
    if not notes:
        return None, []
    module.graph.eliminate_dead_code()
    # What reads such a map may belong to the source alone now.
    classify(module)
    return Typed(order="none", num_types=1, types=types_name), notes


def count_types(module: fx.GraphModule) -> tuple[int, str]:
    """How many types all the maps have that could leave the edges, and the name of the edge data that holds the types; 0 and an empty
    name where there are none, or where they are picked by types of several edge data."""
    maps = [node.all_input_nodes for node in _leaving(module)]
    names = {types.name for _, types, _ in maps}
    if len(names) != 1:
        return 0, ""
    return min(int(weight.meta["val"].shape[0]) for _, _, weight in maps), names.pop()


def map_first(module: fx.GraphModule) -> tuple[Typed | None, list[Note]]:
    """Let one map of several types leave the edges, of sources rather than of destinations: its result is read like a vertex's row,
    from now on. Gives what is to be computed for every pair, and what was done."""
    gather = gather_of(module)
    leaving = sorted(_leaving(module), key=lambda node: _end_of(node) == "dst")
    node = next((node for node in leaving if _end_of(node) == "src" or is_separable(gather)), None)
    if node is None:
        return None, []
    x, types, weight = node.all_input_nodes
    end = _end_of(node)
    node.meta["place"] = end
    mean = end == "dst" and gathering_of(gather).averages
    if mean:
        gather.args = (gather.args[0], SUM.name, 0)
    num_types = int(weight.meta["val"].shape[0])
    typed = Typed(
        order="first",
        end=end,
        types=types.name,
        name=node.name,
        x=x.name,
        weight=weight.name,
        num_types=num_types,
        mean=mean,
    )
    text = f"{num_types} maps, once per pair of {'source' if end == 'src' else 'destination'} and type"
    return typed, [Note(kind="typed", text=text, line=node.meta["line"])]


def _end_of(node: fx.Node) -> End:
    place = node.all_input_nodes[0].meta["place"]
    return "src" if place == "src" else "dst"


def is_separable(gather: fx.Node) -> bool:
    """Whether parts of the edges, such as those of a type, may be gathered by themselves, and what is gathered summed."""
    # A sum may overflow in half precision where the mean does not.
    form = gathering_of(gather)
    return form.is_linear and not (form.averages and gather.meta["val"].dtype == torch.float16)


def map_last(module: fx.GraphModule, first: Typed) -> tuple[fx.GraphModule, Typed, Note] | None:
    """Let the map follow the gather, in a copy of the graph that :func:`map_first` has changed; None where that would be another
    function. Gives the copy, what is to be computed for every pair, and what was done."""
    module = _LazyGraphModule(module, copy.deepcopy(module.graph))
    gather = gather_of(module)
    values, averages = gather.args[0], gathering_of(gather).averages
    if first.end == "dst" or not is_separable(gather):
        return None
    assert isinstance(values, (list, tuple))
    message = message_of(values[0])
    if message is None or message.row.name != first.name or len(message.row.users) != 1:
        return None
    x, types, weight = message.row.args
    assert isinstance(x, fx.Node)
    assert isinstance(weight, fx.Node)
    if not one_dtype(values[0], message.row, message.number, x, weight):
        return None
    with module.graph.inserting_before(gather):
        rows = gathered_rows(module, gather, message, x)
        rows.args = (rows.args[0], SUM.name, 0)
        mapped = insert(module, gather, TYPED_LINEAR, rows, types, weight)
    gather.replace_all_uses_with(mapped)
    module.graph.eliminate_dead_code()
    last = replace(first, order="last", end="dst", name=mapped.name, x=rows.name, weight=weight.name, mean=averages)
    text = f"{first.num_types} maps, once per pair of destination and type, after the gather"
    return module, last, Note(kind="typed", text=text, line=message.row.meta["line"])


def with_bytes(typed: Typed, module: fx.GraphModule, frontier: Iterable[fx.Node]) -> Typed:
    """Fill in what the forward moves for a pair, besides what its edges read.

    First: the vertex's row is read and written, read and mapped, the result written. Last: what was gathered is
    written, read and mapped, the result written and read. Other rows of the paired end are read and written; what is
    gathered for pairs and not mapped is written and read.
    """
    nodes = {node.name: node for node in module.graph.nodes}
    row, mapped = row_bytes(nodes[typed.x]), row_bytes(nodes[typed.name])
    others = [node for node in frontier if node.meta["place"] == typed.end and node.name != typed.name]
    if typed.order == "first" and typed.end == "dst":
        others.append(gather_of(module))
    own = 3 * row + mapped if typed.order == "first" else 2 * row + 2 * mapped
    moved = own + 2 * sum(row_bytes(node) for node in others)
    return replace(typed, bytes_per_pair=moved)


def _leaving(module: fx.GraphModule) -> list[fx.Node]:
    """The maps by type that could leave the edges."""
    return [node for node in module.graph.nodes if _leaves(node)]


def _leaves(node: fx.Node) -> bool:
    if node.target is not TYPED_LINEAR or node.meta["place"] != "edge":
        return False
    x, types, weight = node.all_input_nodes
    is_given = types.op == "placeholder" and types.meta["place"] == "edge"
    return x.meta["place"] in ("src", "dst") and is_given and weight.meta["place"] == "param"
