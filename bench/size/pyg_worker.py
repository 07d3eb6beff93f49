"""PyG on a graph that may be larger than memory: its own GCNConv, over its usual form of the edges, or its leanest.

"edge_index" is what its guides show: two 64-bit ids an edge, degree weights made by the layer and kept. "csr" is a sparse
matrix of 32-bit ids with the weights in it, made beforehand slab by slab.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor

from bench.epochs.pyg_worker import RENAMED, Model
from bench.standalone.large import specification, train
from bench.standalone.stored import Stored, map_dataset
from bench.standalone.training import Training, copy_weights

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


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR")
    asked = specification()
    stored = map_dataset(Path(asked["dataset"]))
    usual = asked["variant"] == "edge_index"
    edges = edge_index(stored) if usual else csr(stored)
    model = Model(asked, stored.features.shape[1], asked["classes"])
    for layer in model.layers:
        # The layers make the degree weights, or the matrix has them.
        layer.normalize = layer.add_self_loops = layer.cached = usual
    copy_weights(asked["weights"], "gcn", model, RENAMED["gcn"])
    training = Training(
        lambda: model(stored.features, edges, None), model, stored.labels, stored.train, lr=asked["lr"]
    )
    train(training, asked["epochs"])


if __name__ == "__main__":
    main()
