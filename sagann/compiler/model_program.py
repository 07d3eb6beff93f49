"""ModelProgram: what a captured model is: stages of vertices, and the gathers between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sagann.compiler.program import EdgeWork, Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Gather:
    """What is gathered over the edges of one hop."""

    edges: EdgeWork
    "What an edge computes, from named values, parameters and its data."
    inputs: tuple[str, ...]
    "Names in the program, one per input of ``edges.stage``; that of edge data is the topology's."
    result: str
    "Name of what is gathered."
    hop: int
    "Number of the first hop that has these edges; the numbers of edges of one type follow those of the hops."
    constant: bool
    "Whether the result depends on constant features, topology and edge data alone: it is the same in every epoch."
    seed: int
    "Which of the epoch's seeds its edges draw random numbers from; -1 where they draw none."


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeType:
    """The edges of one type in a hop."""

    hop: int
    "Number of the hop."
    data: str
    "Name of the edge data that holds the types."
    type: int
    "Which of them."


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Features and type of a named value's rows."""

    shape: tuple[int, ...]
    "Without the rows."
    dtype: torch.dtype
    "Of the values."


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelProgram:
    """A captured model: ``stages[0]``, ``gathers[0]``, ``stages[1]``, ... and ``stages[-1]``."""

    parameters: tuple[tuple[str, str], ...]
    "Names in the program and in the model, of parameters and buffers."
    param: Stage
    "What depends on parameters alone."
    stages: tuple[Stage, ...]
    "Of vertices; each maps rows to rows."
    gathers: tuple[Gather, ...]
    "Between the stages."
    edge_types: tuple[EdgeType, ...]
    "What the numbers of hops stand for that follow those of the hops: a map by type gathers each type by itself."
    num_types: Mapping[tuple[int, str], int]
    "By hop and edge data: below how many its types must be."
    output: str
    "Name of the model's result."
    num_seeds: int
    "Number of dropouts and of gathers that draw random numbers: an epoch has a seed for each."
    draws_more: bool
    "Whether operators other than dropouts and gathers draw random numbers."
    x_is_sparse: bool
    "Whether features are sparse: dropout and linear maps are then all that reads them."
    forms: Mapping[str, Form]
    "Of every value of vertices that a stage or a gather gives, and of ``x``."

    @property
    def random(self) -> bool:
        """Whether anything in it draws random numbers."""
        return self.num_seeds > 0 or self.draws_more

    @property
    def constants(self) -> object:
        """What is gathered once: equal for programs of one model that gather the same, under the same names."""
        gathered = []
        for gather in (each for each in self.gathers if each.constant):
            edges = gather.edges
            # What depends on a stage is not constant, and a model with edges that are not fused is not streamed.
            assert all(name == "x" for name, side in zip(gather.inputs, edges.sides, strict=True) if side != "edge")
            assert edges.function is not None
            form = edges.gathering, edges.dtype, repr(edges.function.content)
            gathered.append((gather.result, gather.hop, gather.inputs, *form))
        return tuple(gathered)
