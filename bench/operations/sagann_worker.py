"""sagann's gathers as operations: layers whose ApplyVertex hands on what was gathered."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.epochs.sagann_worker import choose_engine
from bench.standalone.operation import SLOPE, Operation, attention
from bench.standalone.serve import serve
from bench.standalone.stored import read_stored
from sagann.graph import Topology
from sagann.saga import Edge, SagaLayer


class Sum(SagaLayer):
    """The sum of the sources' rows."""


class WeightedSum(SagaLayer):
    """The sum of the sources' rows, each times its edge's weight."""

    edge_data = "weight"

    def apply_edge(self, edge: Edge) -> Tensor:
        """The row times the weight."""
        return edge.src * edge.data.unsqueeze(-1)


class Maximum(SagaLayer):
    """The largest of the sources' values."""

    accumulator = "max"


class Gated(SagaLayer):
    """The sum of the sources' rows through a gate of both ends."""

    def apply_edge(self, edge: Edge) -> Tensor:
        """The gate times the row."""
        return torch.sigmoid(edge.dst + edge.src) * edge.src


class Softmax(SagaLayer):
    """Attention with fixed vectors."""

    accumulator = "softmax"

    def __init__(self, num_features: int) -> None:
        super().__init__()
        source, destination = attention(num_features)
        self.register_buffer("source", source)
        self.register_buffer("destination", destination)

    def apply_edge(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """Scores [num_edges, H] and values [num_edges, H, D]."""
        value = edge.src.view(-1, *self.source.shape)
        at_destination = (edge.dst.view(-1, *self.destination.shape) * self.destination).sum(-1)
        return F.leaky_relu((value * self.source).sum(-1) + at_destination, SLOPE), value

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """Put the heads side by side."""
        return accum.flatten(1)


LAYERS = {"sum": Sum, "weighted-sum": WeightedSum, "max": Maximum, "gated": Gated}


class Loaded(NamedTuple):
    """What is in memory before a run."""

    topology: Topology
    x: Tensor


def load(specification: dict, folder: Path) -> Loaded:
    """The topology, with weights where they are used."""
    choose_engine(specification["variant"])
    stored = read_stored(folder)
    weights = {"weight": stored.gcn_weights()} if specification["operation"] == "weighted-sum" else {}
    topology = Topology(indptr=stored.indptr, indices=stored.src, num_src=stored.num_vertices, edge_data=weights)
    return Loaded(topology, stored.features)


def build(specification: dict, loaded: Loaded) -> Operation:
    """The layer that the specification names."""
    name = specification["operation"]
    layer = Softmax(loaded.x.shape[1]) if name == "softmax" else LAYERS[name]()
    return Operation(lambda x: layer(loaded.topology, x), loaded.x)


if __name__ == "__main__":
    serve(load, build)
