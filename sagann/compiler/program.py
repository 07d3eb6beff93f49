"""LayerProgram: what the compiler makes of a layer, frozen.

Parameter stage -> source stage, once per source vertex -> destination stage, once per destination vertex -> the
edges, gathered -> vertex stage. Stages are PyTorch's, differentiated by its autograd; the edges are one pass
(:class:`sagann.kernels.edge.function.EdgeFunction`) where they could be fused. All stages read and write one set of
named values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx

from sagann.compiler.vjp import Backward
from sagann.kernels.accumulators import Gathering
from sagann.kernels.dense import linear
from sagann.kernels.edge.function import EdgeFunction, Side
from sagann.kernels.row_dropout import dropout

End = Literal["src", "dst"]
"A side of the edges that is vertices."


RunRows = Callable[["EdgeWork", Sequence[Tensor]], Tensor]
"Computes a region of a stage, within rows, from what it reads."


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A function from named tensors to named tensors."""

    module: fx.GraphModule
    "Takes the inputs in order, returns a tuple of the outputs."
    inputs: tuple[str, ...]
    "Names of nodes of the layer's graph."
    outputs: tuple[str, ...]
    "Names of nodes of the layer's graph."

    rows: tuple[EdgeWork, ...] = ()
    "Regions within rows that are one call each in the module, as work of an edge from each vertex to itself."

    def run(self, values: Mapping[str, Tensor], run_rows: RunRows) -> dict[str, Tensor]:
        """Compute the outputs from the inputs among ``values``.

        Args:
            values: by name.
            run_rows: computes a region from what it reads.
        """
        given: list[Any] = [values[name] for name in self.inputs]
        if self.rows:
            given.insert(0, lambda number, *arrays: run_rows(self.rows[number], arrays))
        results = self.module.forward(*given)
        return dict(zip(self.outputs, results, strict=True))

    def maps(self, names: Collection[str]) -> bool:
        """Whether inputs of these names are read by dropout and linear maps alone."""
        nodes = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        # A stage with regions of rows is given the function that runs them first.
        given = [
            node
            for name, node in zip(self.inputs, nodes[len(nodes) - len(self.inputs) :], strict=True)
            if name in names
        ]
        return all(map(_is_mapped, given))

    def __bool__(self) -> bool:
        return bool(self.outputs)


def _is_mapped(rows: fx.Node) -> bool:
    """Whether a node is read as the rows of dropout and linear maps alone."""
    return all(
        user.target in (linear, dropout)
        and user.args[0] is rows
        and rows not in user.args[1:]
        and (user.target is linear or _is_mapped(user))
        for user in rows.users
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something that the compiler did, or did not do and why."""

    kind: Literal["split", "commuted", "typed", "hoisted", "shared", "fused", "not fused"]
    "What."
    text: str
    "To whom, in words."
    line: str = ""
    "The user's line."


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed:
    """A linear map picked by edge type that is not computed on the edges."""

    order: Literal["none", "first", "last"]
    """When it is computed. none: there is one type, and its map is part of the stage of its vertices. first: before
    the gather; the edges read its result. last: on what was gathered."""
    end: End = "src"
    """Whose pairs with a type have a row each. Where it is the destinations', the edges are gathered for each pair, and
    the pairs of a destination are summed then."""
    num_types: int
    "How many types there may be."
    name: str = ""
    "Of the result: of what the edges read, or of what the vertices read."
    x: str = ""
    "Of the rows that are mapped: the sources', or what was gathered."
    weight: str = ""
    "Of the maps, [num_types, F, F']."
    mean: bool = False
    "Whether the sum of a destination's pairs is divided by its in-degree."
    bytes_per_pair: int = 0
    "Moved by the forward for a pair, besides what its edges read."
    row_bytes: int = 0
    "Of a row before it is mapped."


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeWork:
    """What is computed on every edge, and how it is gathered."""

    stage: Stage
    "From the rows of an edge's inputs to the message, or to (score, value)."
    sides: tuple[Side, ...]
    "Whose row each input of the stage is."
    gathering: Gathering
    "The accumulators that reduce the messages of a destination's in-edges."
    dtype: torch.dtype
    "Of the result."
    function: EdgeFunction | None
    "The fused pass; None where it could not be fused. For mean it sums."
    why_not: str
    "Why it could not be fused; empty where it was."
    backward: Backward | None
    "Of the fused pass."
    tensor_bytes: int
    "Of all values that the stage computes for an edge."
    random: bool
    "Whether an edge draws random numbers."
    extremum_of_source: bool
    "Whether max or min is taken of a row of the source as it is loaded: its gradient may be moved feature by feature."


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class LayerProgram:
    """A compiled layer."""

    layer: str
    "Name of the layer's class."
    parameters: tuple[tuple[str, str], ...]
    "Names in the program and in the layer, of parameters and buffers."
    param: Stage
    "What depends on parameters alone."
    src: Stage
    "Once per source vertex; reads ``src``."
    shared: tuple[tuple[str, str], ...]
    "Names of values of destinations that are the first rows of a source stage's, and of those."
    dst: Stage
    "Once per destination vertex; reads ``dst`` and what is shared."
    edges: EdgeWork
    "Once per edge."
    typed: Typed | None
    "A map picked by type."
    accum: str
    "Name of what is gathered."
    vertex: Stage
    "What is left of ApplyVertex; one output, the layer's."
    invariant: bool
    "Whether what is gathered depends on features, topology and edge data alone."
    bytes_per_edge: int
    "Read by an edge's pass, rows of both ends and edge data; for concat, what its row moves until it is in place."
    naive_bytes_per_edge: int
    "Read and written per edge where every edge tensor is materialised."
    notes: tuple[Note, ...] = field(default=())
    "What was done and what not."

    @property
    def maps_features(self) -> bool:
        """Whether the vertices' rows are read by dropout and linear maps alone, so that they may be sparse."""
        ends = {"src", "dst"}
        stages = (self.src, self.dst, self.vertex)
        return ends.isdisjoint(self.edges.stage.inputs) and all(stage.maps(ends) for stage in stages)

    maps_last: LayerProgram | None = None
    "The same layer with its map by type after the gather, where that is possible: a topology takes what is cheaper."
