"""ModelProgram: a captured model, as stages on vertices and the links between them: gathers, and means over all vertices or edges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from sagann.compiler.program import EdgeWork, Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Gather:
    """A gather over the edges of one hop."""

    edges: EdgeWork
    inputs: tuple[str, ...]
    "Name in the program of each input of ``edges.stage``; edge data have the topology's name."
    result: str
    hop: int
    "Number of the first hop with these edges. Edges of one type have numbers of their own, after those of the hops."
    constant: bool
    "Whether the result depends on constant features, topology and edge data alone: it is the same in every epoch."
    seed: int
    "Number of the seed, among those of the epoch, from which the edges draw random numbers; -1 where they draw none."

    def values_at_sources(self, read: Collection[str]) -> list[str]:
        """Names in the program of the inputs of the edges that are rows of sources, of those that are ``read``."""
        inputs = zip(self.edges.stage.inputs, self.edges.sides, self.inputs, strict=True)
        return [value for name, side, value in inputs if side == "src" and name in read]

    @property
    def reads_x(self) -> bool:
        """Whether edges read features at their sources. A backward reads none that the forward does not read."""
        function = self.edges.function
        read = self.edges.stage.inputs if function is None else {given.name for given in function.inputs}
        return "x" in self.values_at_sources(read)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMeans:
    """The means, and the reciprocals of the standard deviations, of all rows by channel, which a BatchNorm that is trained reads."""

    values: tuple[str, ...]
    "Names in the program of the values: of the one value of vertices, or of the moments of edges that destinations have gathered."
    edge_shape: tuple[int, ...] | None
    "Shape of an edge's row, where the means are over edges; None where they are over vertices."
    result: str
    "Name of the means, [C]: all vertices share them, as they share parameters."
    scales: str
    "Name of the reciprocals of the standard deviations, likewise."
    norm: str
    eps: float
    "Number that the BatchNorm adds to the variances, so that no standard deviation is 0."


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeType:
    """The edges of one type in a hop."""

    hop: int
    data: str
    "Name of the edge data that holds the types."
    type: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Shape and type of a row of a named value."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelProgram:
    """A captured model: ``stages[0]``, ``links[0]``, ``stages[1]``, ... and ``stages[-1]``."""

    parameters: tuple[tuple[str, str], ...]
    "For each parameter and buffer, its name in the program and its name in the model."
    param: Stage
    stages: tuple[Stage, ...]
    links: tuple[Gather | BatchMeans, ...]
    "What stands between the stages: gathers, and means over all vertices or edges."
    edge_types: tuple[EdgeType, ...]
    "Edges of one type, which a map by type gathers by themselves; they are numbered after the hops."
    num_types: Mapping[tuple[int, str], int]
    "By hop and name of edge data, the number of types: every type must be below it."
    factors: Mapping[str, tuple[int, str]]
    "By name of rows of vertices, the number of the hop and the name of the edge data that are a product of the rows of both ends."
    output: str
    num_seeds: int
    "Number of dropouts and of gathers that draw random numbers: an epoch has a seed for each."
    draws_more: bool
    "Whether operators other than dropouts and gathers draw random numbers."
    x_is_sparse: bool
    "Whether features are sparse: dropout and linear maps are then all that reads them."
    x_is_constant: bool
    "Whether the features ``x`` are the same in every epoch, so that what is gathered from them is kept."
    forms: Mapping[str, Form]
    "By name, the form of every value that a stage or a gather gives, and of ``x``."

    @property
    def gathers(self) -> tuple[Gather, ...]:
        """The gathers among the links."""
        return tuple(link for link in self.links if isinstance(link, Gather))

    @property
    def means(self) -> tuple[BatchMeans, ...]:
        """The means among the links."""
        return tuple(link for link in self.links if isinstance(link, BatchMeans))

    def gather(self, number: int) -> Gather:
        """The gather that is the link of that number."""
        link = self.links[number]
        assert isinstance(link, Gather)
        return link

    def mean(self, number: int) -> BatchMeans:
        """The means that are the link of that number."""
        link = self.links[number]
        assert isinstance(link, BatchMeans)
        return link

    @property
    def random(self) -> bool:
        """Whether the program draws random numbers."""
        return self.num_seeds > 0 or self.draws_more

    @property
    def reads_constant_x(self) -> bool:
        """Whether edges read constant features at their sources in every epoch."""
        return self.x_is_constant and any(gather.reads_x and not gather.constant for gather in self.gathers)

    @property
    def constants(self) -> object:
        """A key of what is kept from epoch to epoch; programs of one model that keep the same, under the same names, have equal keys."""
        gathered: list[object] = [self.reads_constant_x, *self.factors.items()]
        for gather in (each for each in self.gathers if each.constant):
            edges = gather.edges
            # What depends on a stage is not constant, and a model with edges that are not fused is not streamed.
            given = ("x", *self.factors)
            assert all(
                name in given for name, side in zip(gather.inputs, edges.sides, strict=True) if side != "edge"
            )
            assert edges.function is not None
            form = edges.gathering, edges.dtype, repr(edges.function)
            gathered.append((gather.result, gather.hop, gather.inputs, *form))
        return tuple(gathered)
