"""PyG's contestant: its own layers, over every form of the edges that a layer takes.

The variants are "edge_index" (a plain tensor), "EdgeIndex" (sorted by destination, known to be undirected, with its
cache filled; and with 32-bit ids), "csr" (adj_t as ``torch.sparse_csr``; and with 32-bit ids), "SparseTensor" (of
torch_sparse, where it is installed), "compile" (``torch.compile`` over the plain tensor) and "reduce-overhead" (the same, in CUDA graphs). After "+sparse", features
are ``torch.sparse_csr`` too, which the layers take that begin with a linear map.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GatedGraphConv, GCNConv, GINConv, GraphConv, MessagePassing, SAGEConv
from torch_geometric.typing import SparseTensor

from bench.standalone.serve import UnsupportedError, serve
from bench.standalone.stored import Stored, read_stored
from bench.standalone.training import Stack, Training, copy_weights, training_of

SELF_LOOPS = ("gcn", "gat")
VARIANTS = ("edge_index", "EdgeIndex", "EdgeIndex32", "csr", "csr32", "SparseTensor", "compile", "reduce-overhead")
TAKEN_BY = {"EdgeIndex32": ("commnet",), "csr32": ("commnet", "gcn", "sage", "gin", "maxpool-gcn", "ggnn")}
"Layers that take 32-bit ids: those that hand the whole matrix to one product. Scattering needs 64-bit ids."
SPARSE = "+sparse"
TAKE_SPARSE_FEATURES = ("gcn", "gat", "ggnn")


class Loaded(NamedTuple):
    edges: Tensor | SparseTensor
    weight: Tensor | None
    stored: Stored


class Gated(MessagePassing):
    """The gated layer as a user of PyG would write it: linear maps at the vertices, the gate in ``message``.

    PyG's ``ResGatedGraphConv`` maps the values as well, which the paper's layer does not.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__(aggr="add")
        self.gate_dst = nn.Linear(in_dim, in_dim, bias=False)
        self.gate_src = nn.Linear(in_dim, in_dim)
        self.linear = nn.Linear(in_dim, out_dim)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.linear(self.propagate(edges, a=self.gate_dst(x), b=self.gate_src(x), x=x))

    def message(self, a_i: Tensor, b_j: Tensor, x_j: Tensor) -> Tensor:
        return torch.sigmoid(a_i + b_j) * x_j


def gin(in_dim: int, out_dim: int) -> GINConv:
    return GINConv(
        nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim)), train_eps=True
    )


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "commnet": GraphConv,
    "gcn": lambda in_dim, out_dim: GCNConv(in_dim, out_dim, normalize=False),
    "sage": SAGEConv,
    "gin": gin,
    "maxpool-gcn": lambda in_dim, out_dim: SAGEConv(in_dim, out_dim, aggr="max", project=True, root_weight=False),
    "gated-gcn": Gated,
}
WEIGHT_AND_BIAS = ("weight", "bias")
RENAMED = {
    "commnet": {"own.weight": "lin_root.weight", "heard.weight": "lin_rel.weight", "heard.bias": "lin_rel.bias"},
    "gcn": {"linear.weight": "lin.weight", "linear.bias": "bias"},
    "sage": {"own.weight": "lin_r.weight", "neighbours.weight": "lin_l.weight", "neighbours.bias": "lin_l.bias"},
    "gin": {f"mlp.{i}.{part}": f"nn.{i}.{part}" for i in (0, 2) for part in WEIGHT_AND_BIAS},
    "maxpool-gcn": {f"pool.{part}": f"lin.{part}" for part in WEIGHT_AND_BIAS}
    | {f"linear.{part}": f"lin_l.{part}" for part in WEIGHT_AND_BIAS},
    "gat": {"project.weight": "lin.weight", "attend_src": "att_src", "attend_dst": "att_dst"},
    "ggnn": {"maps": "weight"}
    | {f"gru.{part}_{of}": f"rnn.{part}_{of}" for part in WEIGHT_AND_BIAS for of in ("ih", "hh")},
}


class Model(Stack):
    """A model of PyG's layers."""

    def layer(self, specification: dict, in_dim: int, out_dim: int, heads: int) -> nn.Module:
        if specification["model"] == "gat":
            return GATConv(in_dim, out_dim // heads, heads=heads, add_self_loops=False)
        return LAYERS[specification["model"]](in_dim, out_dim)

    def steps(self, width: int, count: int) -> list[nn.Module]:
        # Steps share their parameters.
        return [GatedGraphConv(width, 1)] * count

    def forward(self, x: Tensor, edges: Tensor | SparseTensor, weight: Tensor | None) -> Tensor:
        return super().forward(x, edges) if weight is None else super().forward(x, edges, weight)


def edges_of(variant: str, stored: Stored, value: Tensor | None) -> Tensor | SparseTensor:
    """The edges in a variant's form; matrices hold ``value`` (default 1)."""
    n = stored.num_vertices
    if variant.startswith("csr"):
        ids = torch.int32 if variant == "csr32" else torch.int64
        value = torch.ones(len(stored.src)) if value is None else value
        return torch.sparse_csr_tensor(stored.indptr.to(ids), stored.src.to(ids), value, size=(n, n))
    if variant == "SparseTensor":
        try:
            from torch_sparse import SparseTensor as Sparse
        except ImportError as error:
            raise UnsupportedError("torch_sparse is not installed") from error
        return Sparse(rowptr=stored.indptr, col=stored.src.long(), value=value, sparse_sizes=(n, n), is_sorted=True)
    ids = torch.int32 if variant == "EdgeIndex32" else torch.int64
    edge_index = torch.stack([stored.src.to(ids), stored.dst().to(ids)])
    if variant.startswith("EdgeIndex"):
        return EdgeIndex(edge_index, sparse_size=(n, n), sort_order="col", is_undirected=True)
    return edge_index


def load(specification: dict, folder: Path) -> Loaded:
    """The graph in the variant's form; self-loops and degree weights already there."""
    kind, variant = specification["model"], specification["variant"].removesuffix(SPARSE)
    if variant not in VARIANTS:
        raise UnsupportedError(f"PyG has no variant '{variant}'")
    is_sparse = specification["variant"].endswith(SPARSE)
    if is_sparse and (kind not in TAKE_SPARSE_FEATURES or not specification["sparse"]):
        raise UnsupportedError(f"no sparse features, or PyG's {kind} does not take them")
    if kind not in TAKEN_BY.get(variant, (kind,)):
        raise UnsupportedError(f"PyG's {kind} does not take {variant}")
    stored = read_stored(folder)
    if kind in SELF_LOOPS:
        stored = stored.with_self_loops()
    weight = stored.gcn_weights() if kind == "gcn" else None
    edges = edges_of(variant, stored, weight)
    in_matrix = variant.startswith("csr") or variant == "SparseTensor"
    # The edges are in their own form now; they need not be kept twice.
    stored = stored.without_edges()
    return Loaded(edges, None if in_matrix else weight, stored.with_sparse_features() if is_sparse else stored)


def build(specification: dict, loaded: Loaded) -> Training:
    """Model, weights, and the caches of the edges."""
    edges, weight, stored = loaded
    if isinstance(edges, EdgeIndex):
        edges.fill_cache_()
    model = Model(specification, stored.features.shape[1], stored.num_classes)
    kind = specification["model"]
    copy_weights(specification["folder"], kind, model, RENAMED.get(kind, {}))
    run = model
    if specification["variant"] in ("compile", "reduce-overhead"):
        # A pool of compiling processes would stay, and count.
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        mode = None if specification["variant"] == "compile" else "reduce-overhead"
        run = torch.compile(model, dynamic=False, mode=mode)
    return training_of(specification, lambda: run(stored.features, edges, weight), model, stored)


if __name__ == "__main__":
    serve(load, build)
