"""PyG on a graph that may be larger than memory: its own GCNConv, over its usual form of the edges, or its leanest.

"edge_index" is what its guides show: two 64-bit ids an edge, degree weights made by the layer and kept. "csr" is a sparse
matrix of 32-bit ids with the weights in it, made beforehand slab by slab.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from bench.epochs.pyg_worker import RENAMED
from bench.standalone.large import specification, train
from bench.standalone.stored import Stored, map_dataset
from bench.standalone.training import Training, copy_weights, read_weights

_SLAB = 1 << 22


def edge_index(stored: Stored) -> Tensor:
    """int64 [2, num_edges]."""
    edges = torch.empty(2, len(stored.src), dtype=torch.int64)
    edges[0], edges[1] = stored.src, stored.dst()
    return edges


def csr(stored: Stored) -> Tensor:
    """The weighted adjacency with self-loops, a row for every destination. The graph has none before."""
    n = stored.num_vertices
    indptr = stored.indptr + torch.arange(n + 1)
    scale = indptr.diff().to(torch.float32).rsqrt()
    num_edges = int(indptr[-1])
    sources = torch.empty(num_edges, dtype=torch.int32)
    weights = torch.empty(num_edges)
    for first in range(0, n, _SLAB // 64):
        last = min(first + _SLAB // 64, n)
        begin, end = int(indptr[first]), int(indptr[last])
        is_loop = torch.zeros(end - begin, dtype=torch.bool)
        is_loop[indptr[first + 1 : last + 1] - 1 - begin] = True
        into = sources[begin:end]
        into[~is_loop] = stored.src[int(stored.indptr[first]) : int(stored.indptr[last])]
        into[is_loop] = torch.arange(first, last, dtype=torch.int32)
        dst = torch.repeat_interleave(torch.arange(first, last), indptr[first : last + 1].diff())
        weights[begin:end] = scale[into] * scale[dst]
    return torch.sparse_csr_tensor(indptr.int(), sources, weights, size=(n, n))


class Model(nn.Module):
    """Two layers, whose degree weights are made by the layers or stand in the matrix."""

    def __init__(self, dims: tuple[int, int, int], *, normalize: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            GCNConv(*pair, normalize=normalize, cached=normalize) for pair in pairwise(dims)
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.layers[1](F.relu(self.layers[0](x, edges)), edges)


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR")
    asked = specification()
    stored = map_dataset(Path(asked["dataset"]))
    usual = asked["variant"] == "edge_index"
    edges = edge_index(stored) if usual else csr(stored)
    model = Model((stored.features.shape[1], asked["hidden"], asked["classes"]), normalize=usual)
    copy_weights(read_weights(Path(asked["weights"]), "gcn"), model, RENAMED["gcn"])
    training = Training(lambda: model(stored.features, edges), model, stored.labels, stored.train, lr=asked["lr"])
    train(training, asked["epochs"])


if __name__ == "__main__":
    main()
