"""PyG on a graph that may be larger than memory: its own GCNConv, over its usual form of the edges, or its leanest.

"edge_index" is what its guides show: two 64-bit ids an edge, degree weights made by the layer and kept. "csr" is a sparse
matrix of 32-bit ids with the weights in it, made beforehand slab by slab.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GCNConv

from bench.standalone.large import Dataset, destinations, open_dataset, specification, train, weights_of

_SLAB = 1 << 22


def edge_index(dataset: Dataset) -> Tensor:
    """int64 [2, num_edges]."""
    edges = torch.empty(2, len(dataset.indices), dtype=torch.int64)
    edges[0] = dataset.indices
    edges[1] = destinations(dataset, torch.int64)
    return edges


def csr(dataset: Dataset) -> Tensor:
    """The weighted adjacency with self-loops, a row for every destination. The graph has none before."""
    num_vertices = len(dataset.labels)
    indptr = dataset.indptr + torch.arange(num_vertices + 1)
    scale = indptr.diff().to(torch.float32).rsqrt()
    num_edges = int(indptr[-1])
    sources = torch.empty(num_edges, dtype=torch.int32)
    weights = torch.empty(num_edges)
    for first in range(0, num_vertices, _SLAB // 64):
        last = min(first + _SLAB // 64, num_vertices)
        begin, end = int(indptr[first]), int(indptr[last])
        is_loop = torch.zeros(end - begin, dtype=torch.bool)
        is_loop[indptr[first + 1 : last + 1] - 1 - begin] = True
        into = sources[begin:end]
        into[~is_loop] = dataset.indices[int(dataset.indptr[first]) : int(dataset.indptr[last])]
        into[is_loop] = torch.arange(first, last, dtype=torch.int32)
        dst = torch.repeat_interleave(torch.arange(first, last), indptr[first : last + 1].diff())
        weights[begin:end] = scale[into] * scale[dst]
    return torch.sparse_csr_tensor(indptr.int(), sources, weights, size=(num_vertices, num_vertices))


def main() -> None:
    """Load, and train."""
    warnings.filterwarnings("ignore", message="Sparse CSR")
    asked = specification()
    dataset = open_dataset(asked["dataset"])
    usual = asked["variant"] == "edge_index"
    edges = edge_index(dataset) if usual else csr(dataset)
    weights = weights_of(asked["weights"])
    layers = [GCNConv(weight.shape[1], weight.shape[0], normalize=usual, cached=usual) for weight, _ in weights]
    for layer, (weight, bias) in zip(layers, weights, strict=True):
        layer.lin.weight.data, layer.bias.data = weight, bias
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    train(lambda: layers[1](F.relu(layers[0](dataset.features, edges)), edges), parameters, dataset, asked)


if __name__ == "__main__":
    main()
