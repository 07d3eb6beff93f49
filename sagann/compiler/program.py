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

from sagann.compiler.vjp import BackwardPass, backward_passes
from sagann.kernels.accumulators import Gathering
from sagann.kernels.dense import linear
from sagann.kernels.edge.function import EdgeFunction, End, Side
from sagann.kernels.row_dropout import dropout


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerInput:
    """A tensor that a layer is given: rows of vertices, as one end of the edges sees them, or edge data."""

    name: str
    end: Literal["src", "dst", "edge"]
    "Whose rows the tensor has."
    key: str
    "Name by which the layer reads the tensor; empty where the layer has one of the kind."


RunRows = Callable[["EdgeWork", Sequence[Tensor]], Tensor]
"Computes a region of a stage, within rows, from what it reads."


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A function from named tensors to named tensors."""

    module: fx.GraphModule
    "Graph of operators that takes the inputs in order and returns a tuple of the outputs."
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    rows: tuple[EdgeWork, ...] = ()
    "Regions of pointwise work that are one call each in the module, written as work on an edge from each vertex to itself."

    def run(self, values: Mapping[str, Tensor], run_rows: RunRows) -> dict[str, Tensor]:
        """Compute the outputs from the inputs among ``values``, and regions by ``run_rows``."""
        if not self.outputs:
            return {}
        given: list[Any] = [values[name] for name in self.inputs]
        if self.rows:
            given.insert(0, lambda number, *arrays: run_rows(self.rows[number], arrays))
        results = self.module.forward(*given)
        return dict(zip(self.outputs, results, strict=True))

    def maps(self, names: Collection[str]) -> bool:
        """Whether inputs of these names are read by dropout and linear maps alone."""
        nodes = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        # A stage with regions of rows is given the function that runs them first.
        inputs = zip(self.inputs, nodes[len(nodes) - len(self.inputs) :], strict=True)
        return all(_is_mapped(node) for name, node in inputs if name in names)

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
    """A decision of the compiler: something that it did, or that it did not do and why."""

    kind: Literal["split", "commuted", "typed", "hoisted", "shared", "fused", "not fused"]
    text: str
    "Operator that the decision concerns, and why, in words."
    line: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed:
    """A linear map picked by edge type that is not computed on the edges."""

    order: Literal["none", "first", "last"]
    """When the map is computed. none: there is one type, and its map is part of a vertex stage. first: before the gather, so
    that the edges read mapped rows. last: after the gather, on the gathered rows."""
    end: End = "src"
    """End whose pairs (vertex, type) have a row each. At "dst", edges are gathered into pairs, and the pairs of a destination
    are summed."""
    num_types: int
    types: str
    name: str = ""
    "Name of the result, which the edges or the vertices read."
    x: str = ""
    "Name of the rows that are mapped: those of the sources, or the gathered ones."
    weight: str = ""
    "Name of the maps' weights, [num_types, F, F']."
    mean: bool = False
    "Whether the sum of a destination's pairs is divided by its in-degree."
    bytes_per_pair: int = 0
    "Bytes that the forward moves for a pair, besides the rows that its edges read."


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeWork:
    """The computation on every edge, and how its results are gathered."""

    stage: Stage
    "Stage from the rows of an edge's inputs to the values of its messages."
    sides: tuple[Side, ...]
    "For each input of the stage, the end or kind that its row belongs to."
    gathering: Gathering
    dtype: torch.dtype
    function: EdgeFunction | None
    "The fused pass, which sums for a mean; None where the computation could not be fused."
    why_not: str = ""
    "Reason why the computation could not be fused; empty where it was."
    tensor_bytes: int = 0
    "Bytes of all values that the stage computes for an edge."
    random: bool = False
    "Whether an edge draws random numbers."
    of_messages: EdgeFunction | None = None
    "For tiles, the pass that gathers messages that were computed before; None where the computation is fused."
    derived: dict[object, tuple[BackwardPass, ...]] = field(default_factory=dict, compare=False, repr=False)
    "The passes of the backwards that were asked for so far."

    def backward(self, wanted: tuple[str, ...], *, hands_on: bool = True) -> tuple[BackwardPass, ...]:
        """The passes that compute the gradients of these inputs, derived at the first call; none where the computation is not fused."""
        if (key := (wanted, hands_on)) not in self.derived and self.function is not None:
            self.derived[key] = backward_passes(self.function, wanted, hands_on=hands_on)
        return self.derived.get(key, ())

    @property
    def extremum_of_source(self) -> bool:
        """Whether the message is the source's row itself, reduced by max or min: its gradient may be scattered feature by feature."""
        if self.function is None or not (self.gathering.is_one and self.gathering.names_edges):
            return False
        (output,) = self.function.outputs
        return any(given.side == "src" and given.name in output.values for given in self.function.inputs)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGather:
    """A gather of a layer's graph, and where its edges begin."""

    node: fx.Node
    frontier: list[fx.Node]
    "What the edges read, in order."
    edges: EdgeWork
    constant: bool
    "Whether what is gathered depends on constant features, topology and edge data alone."


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class LayerProgram:
    """A compiled layer."""

    layer: str
    inputs: tuple[LayerInput, ...]
    parameters: tuple[tuple[str, str], ...]
    "For each parameter and buffer, its name in the program and its name in the layer."
    param: Stage
    src: Stage
    "Stage that runs once per source vertex; reads inputs of sources."
    shared: tuple[tuple[str, str], ...]
    "Pairs of names: a value of the destinations, and the value of the sources whose first rows it is."
    dst: Stage
    "Stage that runs once per destination vertex; reads inputs of destinations and the shared values."
    edges: EdgeWork
    typed: Typed | None
    "Linear map picked by edge type, where the layer has one that is not computed on the edges."
    accum: str
    vertex: Stage
    "Stage of the rest of ApplyVertex; its one output is the layer's."
    invariant: bool
    "Whether the gathered rows depend on features, topology and edge data alone."
    bytes_per_edge: int
    "Bytes read per edge: rows of both ends and edge data. For concat, the bytes that an edge's row moves until it is in place."
    naive_bytes_per_edge: int
    "Bytes read and written per edge where every edge tensor is materialised."
    notes: tuple[Note, ...] = field(default=())

    @property
    def maps_features(self) -> bool:
        """Whether the vertices' rows are read by dropout and linear maps alone, so that they may be sparse."""
        ends = {each.name for each in self.inputs if each.end != "edge"}
        stages = (self.src, self.dst, self.vertex)
        # A map by edge type reads the rows of its pairs of a vertex and a type.
        if self.typed is not None and self.typed.x in ends:
            return False
        return ends.isdisjoint(self.edges.stage.inputs) and all(stage.maps(ends) for stage in stages)

    @property
    def source_rows(self) -> tuple[str, ...]:
        """Names of the rows of sources that the edges read, directly or mapped by edge type."""
        names = [
            name for name, side in zip(self.edges.stage.inputs, self.edges.sides, strict=True) if side == "src"
        ]
        if self.typed is not None and self.typed.order == "first" and self.typed.end == "src":
            # The map runs once per pair of a source and a type, on the source's row.
            names = [name for name in names if name not in (self.typed.name, self.typed.x)] + [self.typed.x]
        return tuple(names)

    maps_last: LayerProgram | None = None
    "The same layer with its map by type after the gather, where that is possible; for each topology the cheaper order is taken."
