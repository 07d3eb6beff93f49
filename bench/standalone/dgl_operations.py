"""DGL's gathers as operations, by its fused sparse products. Run by DGL's own Python, without sagann."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import dgl
import dgl.function as fn
import dgl.ops as ops
import torch
import torch.nn.functional as F
from operation import SLOPE, Operation, attention
from serve import serve
from stored import read_stored
from torch import Tensor


class Loaded(NamedTuple):
    """What is in memory before a run."""

    graph: dgl.DGLGraph
    weights: Tensor
    x: Tensor


def softmax(graph: dgl.DGLGraph, x: Tensor) -> Tensor:
    """Attention over the in-edges."""
    source, destination = attention(x.shape[1])
    value = x.view(-1, *source.shape)
    of_source, of_destination = ((value * vector).sum(-1, keepdim=True) for vector in (source, destination))
    score = F.leaky_relu(ops.u_add_v(graph, of_source, of_destination), SLOPE)
    return ops.u_mul_e_sum(graph, value, ops.edge_softmax(graph, score)).flatten(1)


def maximum(graph: dgl.DGLGraph, x: Tensor) -> Tensor:
    """The largest of the sources' values; unlike ``ops.copy_u_max``, 0 where there are no edges."""
    with graph.local_scope():
        graph.srcdata["x"] = x
        graph.update_all(fn.copy_u("x", "m"), fn.max("m", "largest"))
        return graph.dstdata["largest"]


OPERATIONS = {
    "sum": lambda loaded, x: ops.copy_u_sum(loaded.graph, x),
    "weighted-sum": lambda loaded, x: ops.u_mul_e_sum(loaded.graph, x, loaded.weights),
    "max": lambda loaded, x: maximum(loaded.graph, x),
    "gated": lambda loaded, x: ops.u_mul_e_sum(loaded.graph, x, torch.sigmoid(ops.u_add_v(loaded.graph, x, x))),
    "softmax": lambda loaded, x: softmax(loaded.graph, x),
}


def load(specification: dict, folder: Path) -> Loaded:
    """The graph with int32 ids."""
    stored = read_stored(folder)
    weights = stored.gcn_weights().unsqueeze(1)
    edge_ids = torch.arange(len(stored.src), dtype=torch.int32)
    graph = dgl.graph(
        ("csc", (stored.indptr.int(), stored.src, edge_ids)), num_nodes=stored.num_vertices, idtype=torch.int32
    )
    return Loaded(graph, weights, stored.features)


def build(specification: dict, loaded: Loaded) -> Operation:
    """The operation that the specification names, all formats of the graph made beforehand."""
    loaded.graph.create_formats_()
    forward = OPERATIONS[specification["operation"]]
    return Operation(lambda x: forward(loaded, x), loaded.x)


if __name__ == "__main__":
    serve(load, build)
