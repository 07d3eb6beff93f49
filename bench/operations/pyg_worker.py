"""PyG's gathers as operations: message passing over a plain tensor, EdgeIndex and its product, sparse products."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import softmax, spmm

from bench.epochs.pyg_worker import VARIANTS, edges_of
from bench.standalone.operation import SLOPE, Operation, attention
from bench.standalone.serve import UnsupportedError, serve
from bench.standalone.stored import read_stored

AS_MATRIX = ("csr", "csr32", "SparseTensor")
PRODUCTS = {"sum": "sum", "weighted-sum": "sum", "max": "max"}
"Operations that are products with the adjacency matrix, and their reductions."


class Loaded(NamedTuple):
    """What is in memory before a run."""

    edges: Tensor | SparseTensor
    weights: Tensor | None
    x: Tensor


class Sum(MessagePassing):
    """Sum or maximum of rows, times a weight where there is one."""

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor | None) -> Tensor:
        """Propagate."""
        return self.propagate(edges, x=x, weights=weights)

    def message(self, x_j: Tensor, weights: Tensor | None) -> Tensor:
        """The row, times the weight."""
        return x_j if weights is None else x_j * weights.unsqueeze(-1)


class Gated(MessagePassing):
    """The sum of rows through a gate of both ends."""

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor | None) -> Tensor:
        """Propagate."""
        return self.propagate(edges, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        """The gate times the row."""
        return torch.sigmoid(x_i + x_j) * x_j


class Softmax(MessagePassing):
    """Attention with fixed vectors, scores at the vertices as in GATConv."""

    def __init__(self, num_features: int) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.vectors = attention(num_features)

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor | None) -> Tensor:
        """Propagate, heads side by side."""
        value = x.view(-1, *self.vectors[0].shape)
        score = tuple((value * vector).sum(-1) for vector in self.vectors)
        return self.propagate(edges, x=value, score=score).flatten(1)

    def message(
        self, x_j: Tensor, score_i: Tensor, score_j: Tensor, index: Tensor, ptr: Tensor | None, size_i: int | None
    ) -> Tensor:
        """The row times its share."""
        share = softmax(F.leaky_relu(score_i + score_j, SLOPE), index, ptr, size_i)
        return x_j * share.unsqueeze(-1)


def load(specification: dict, folder: Path) -> Loaded:
    """The graph in the variant's form, with weights where they are used."""
    name, variant = specification["operation"], specification["variant"]
    if variant not in VARIANTS or variant == "compile":
        raise UnsupportedError(f"PyG has no variant '{variant}'")
    if name not in PRODUCTS and (variant in AS_MATRIX or variant == "EdgeIndex32"):
        raise UnsupportedError(f"PyG's message passing does not run '{name}' over {variant}")
    if name == "max" and variant == "EdgeIndex32":
        raise UnsupportedError("EdgeIndex's maximum scatters, which needs 64-bit ids")
    stored = read_stored(folder)
    weights = stored.gcn_weights() if name == "weighted-sum" else None
    edges = edges_of(variant, stored, weights)
    return Loaded(edges, None if variant in AS_MATRIX else weights, stored.features)


def build(specification: dict, loaded: Loaded) -> Operation:
    """The operation that the specification names."""
    name, variant = specification["operation"], specification["variant"]
    edges, weights, x = loaded
    if isinstance(edges, EdgeIndex):
        edges.fill_cache_()
    reduce = PRODUCTS.get(name)
    if reduce and variant in AS_MATRIX:
        return Operation(lambda x: spmm(edges, x, reduce), x)
    if reduce and isinstance(edges, EdgeIndex):
        return Operation(lambda x: edges.matmul(x, input_value=weights, reduce=reduce, transpose=True), x)
    layers = {"gated": lambda: Gated(aggr="add"), "softmax": lambda: Softmax(x.shape[1])}
    layer = layers[name]() if name in layers else Sum(aggr="max" if name == "max" else "add")
    return Operation(lambda x: layer(x, edges, weights), x)


if __name__ == "__main__":
    serve(load, build)
