"""Layer graph: a layer as a part of a larger program, its rewritten graphs before they are cut into stages.

A map by edge type leaves the edges of each type as a graph of its own; what they gather is added up. A BatchNorm that computes means over
edges has a gather of its own, before that of the layer (:mod:`sagann.compiler.operators`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import fx

from sagann.compiler.compile import CallForm, layer_gather, rewritten
from sagann.compiler.nodes import gather_of, insert
from sagann.compiler.operators import DROPOUT, EDGE_MEANS, GATHER
from sagann.compiler.program import LayerGather, Note, Typed
from sagann.compiler.typed import count_types, is_separable
from sagann.kernels.accumulators import MOMENTS

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGraph:
    """A layer's rewritten graph, and its gathers."""

    module: fx.GraphModule
    gathers: tuple[LayerGather, ...]
    "Gathers in order: those of BatchNorms over edges, then that of the layer."

    @property
    def output(self) -> fx.Node:
        """What the layer returns."""
        (output,) = (node.args[0] for node in self.module.graph.nodes if node.op == "output")
        assert isinstance(output, fx.Node)
        return output

    @property
    def means(self) -> list[fx.Node]:
        """Means over edges, in the order of their gathers."""
        return [node for node in self.module.graph.nodes if node.target is EDGE_MEANS]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGraphs:
    """A layer's rewritten graphs. They differ in their edges alone; what they gather is added up."""

    parts: tuple[LayerGraph, ...]
    "One for all edges, or one for the edges of each type."
    num_types: int
    "Number of edge types, which every type must be below; 0 where the layer has no map by type."
    types: str = ""
    "Name by which the layer reads the edge data that holds the types."


def layer_graphs(layer: SagaLayer, form: CallForm) -> LayerGraphs:
    """Compile ``layer`` as a part of a larger program, for whole intervals of vertices on both sides of its edges."""

    def graph(edge_type: int | None = None) -> tuple[LayerGraph, Typed | None]:
        notes: list[Note] = []
        # What is gathered of all types is added up, and what follows is one for all: no type's map may come after it.
        options = form.options if edge_type is None else replace(form.options, commute=False)
        module, typed, _ = rewritten(layer, replace(form, options=options), notes, edge_type=edge_type)
        own = gather_of(module)
        _number_dropouts(module)
        gathers = (*_gather_moments(module), own)
        return LayerGraph(
            module=module, gathers=tuple(layer_gather(module, each, form, notes) for each in gathers)
        ), typed

    whole, typed = graph()
    num_types, types = count_types(whole.module)
    keys = {node.name: node.meta["input"].key for node in whole.module.graph.nodes if "input" in node.meta}
    if typed is not None:
        # Beside a map of a single type, others have no more than that.
        num_types = min(num_types, typed.num_types) if types in ("", typed.types) else 0
    if num_types and form.options.hoist and is_separable(whole.gathers[-1].node):
        parts = tuple(graph(each)[0] for each in range(num_types))
        return LayerGraphs(parts=parts, num_types=num_types, types=keys[types])
    if typed is None:
        return LayerGraphs(parts=(whole,), num_types=0)
    return LayerGraphs(parts=(whole,), num_types=typed.num_types, types=keys[typed.types])


def _gather_moments(module: fx.GraphModule) -> list[fx.Node]:
    """Let means over edges read what destinations have gathered, in place; gives the gathers, in order."""
    gathers = []
    for node in module.graph.nodes:
        if node.target is EDGE_MEANS:
            values, norm = node.args
            with module.graph.inserting_before(node):
                moments = insert(module, node, GATHER, values, MOMENTS, 0)
            node.args = ([moments], norm)
            gathers.append(moments)
    return gathers


def _number_dropouts(module: fx.GraphModule) -> None:
    """Let every gather that a dropout of the edges leads to draw the same numbers."""
    drawing = [node for node in module.graph.nodes if node.target is DROPOUT and node.meta["place"] == "edge"]
    for number, node in enumerate(drawing, 1):
        node.args = (*node.args[:2], number)
