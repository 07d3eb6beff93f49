"""DGL's contestant: idiomatic layers over DGL's fused message functions. Run by DGL's own Python, without sagann.

The graph has int32 ids and all its formats are made beforehand, which is DGL's fastest form.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import dgl
import dgl.function as fn
import torch
import torch.nn.functional as F
from dgl.nn.pytorch import GATConv, GatedGraphConv, GINConv, GraphConv, SAGEConv
from serve import UnsupportedError, serve
from stored import Stored, read_stored
from torch import Tensor, nn
from training import Stack, Training, copy_weights, training_of

SELF_LOOPS = ("gcn", "gat")
EDGE_IDS = ("gated-gcn", "gat")
"Where DGL 2.1 sums edge tensors: its backward fails on a CSC without explicit edge ids."


class Loaded(NamedTuple):
    """What is in memory before an epoch."""

    graph: dgl.DGLGraph
    stored: Stored
    scale: Tensor
    weights: Tensor


class CommNet(nn.Module):
    """W_H h + W_C sum + b: DGL's GraphConv without normalisation, and a linear map."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_dim, out_dim, bias=False)
        self.heard = GraphConv(in_dim, out_dim, norm="none", allow_zero_in_degree=True)

    def forward(self, x: Tensor, loaded: Loaded) -> Tensor:
        return self.own(x) + self.heard(loaded.graph, x)


class ScaledGCN(nn.Module):
    """Rows scaled before and after an unweighted sum, which is DGL's fastest: as ``GraphConv(norm="both")`` does,
    with the scales precomputed and applied to the narrow side."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, x: Tensor, loaded: Loaded) -> Tensor:
        graph, scale = loaded.graph, loaded.scale
        with graph.local_scope():
            graph.srcdata["h"] = self.linear(x) * scale
            graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
            return graph.dstdata["h"] * scale + self.bias


class WeightedGCN(nn.Module):
    """DGL's GraphConv with the weights on the edges."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.conv = GraphConv(in_dim, out_dim, norm="none", allow_zero_in_degree=True)

    def forward(self, x: Tensor, loaded: Loaded) -> Tensor:
        return self.conv(loaded.graph, x, edge_weight=loaded.weights)


class MaxPool(nn.Module):
    """The pooling of DGL's ``SAGEConv("pool")``, which cannot be had without its map of the vertex itself."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.pool = nn.Linear(in_dim, in_dim)
        self.linear = nn.Linear(in_dim, out_dim)

    def forward(self, x: Tensor, loaded: Loaded) -> Tensor:
        graph = loaded.graph
        with graph.local_scope():
            graph.srcdata["h"] = F.relu(self.pool(x))
            graph.update_all(fn.copy_u("h", "m"), fn.max("m", "n"))
            return self.linear(graph.dstdata["n"])


class Gated(nn.Module):
    """Gates on the edges: u_add_v, sigmoid, u_mul_e; the linear maps are at the vertices."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.gate_dst = nn.Linear(in_dim, in_dim, bias=False)
        self.gate_src = nn.Linear(in_dim, in_dim)
        self.linear = nn.Linear(in_dim, out_dim)

    def forward(self, x: Tensor, loaded: Loaded) -> Tensor:
        graph = loaded.graph
        with graph.local_scope():
            graph.srcdata["h"], graph.srcdata["b"], graph.dstdata["a"] = x, self.gate_src(x), self.gate_dst(x)
            graph.apply_edges(fn.u_add_v("b", "a", "e"))
            graph.edata["e"] = torch.sigmoid(graph.edata.pop("e"))
            graph.update_all(fn.u_mul_e("h", "e", "m"), fn.sum("m", "n"))
            return self.linear(graph.dstdata["n"])


class Plain(nn.Module):
    """A layer of DGL's own."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, loaded: Loaded) -> Tensor:
        return self.conv(loaded.graph, x)


class Attention(Plain):
    """DGL's GATConv; its heads are concatenated, of which the last layer has one."""

    def forward(self, x: Tensor, loaded: Loaded) -> Tensor:
        return self.conv(loaded.graph, x).flatten(1)


class GatedSteps(Plain):
    """DGL's GatedGraphConv without the bias on messages that the paper does not have."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__(GatedGraphConv(width, width, steps, 1))
        self.conv.linears[0].bias = None


class Model(Stack):
    """A model of DGL's layers."""

    def layer(self, specification: dict, in_dim: int, out_dim: int, heads: int) -> nn.Module:
        kind = specification["model"]
        if kind == "gat":
            return Attention(GATConv(in_dim, out_dim // heads, heads))
        if kind == "gcn":
            return (WeightedGCN if specification["variant"] == "weights" else ScaledGCN)(in_dim, out_dim)
        if kind == "gin":
            mlp = nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))
            return Plain(GINConv(mlp, "sum", learn_eps=True))
        if kind == "sage":
            return Plain(SAGEConv(in_dim, out_dim, "mean"))
        return {"commnet": CommNet, "maxpool-gcn": MaxPool, "gated-gcn": Gated}[kind](in_dim, out_dim)

    def steps(self, width: int, count: int) -> list[nn.Module]:
        return [GatedSteps(width, count)]


RENAMED = {
    "gcn": {"linear.bias": "bias"},
    "gcn weights": {"linear.weight": "conv.weight", "linear.bias": "conv.bias"},
    "sage": {
        "own.weight": "conv.fc_self.weight",
        "neighbours.weight": "conv.fc_neigh.weight",
        "neighbours.bias": "conv.fc_self.bias",
    },
    "gin": {
        "eps": "conv.eps",
        **{f"mlp.{i}.{p}": f"conv.apply_func.{i}.{p}" for i in (0, 2) for p in ("weight", "bias")},
    },
    "gat": {
        "project.weight": "conv.fc.weight",
        "attend_src": "conv.attn_l",
        "attend_dst": "conv.attn_r",
        "bias": "conv.bias",
    },
    "ggnn": {
        "maps": "conv.linears.0.weight",
        **{f"gru.{p}_{q}": f"conv.gru.{p}_{q}" for p in ("weight", "bias") for q in ("ih", "hh")},
    },
}
TRANSPOSED = {"commnet": ("heard.weight",), "gcn weights": ("linear.weight",), "ggnn": ("maps",)}


def load(specification: dict, folder: Path) -> Loaded:
    """The graph as DGL wants it: CSC with int32 ids, self-loops and degree weights already there."""
    kind, variant = specification["model"], specification["variant"]
    if variant not in ("", "weights") or (variant and kind != "gcn"):
        raise UnsupportedError(f"DGL's {kind} has no variant '{variant}'")
    stored = read_stored(folder)
    if kind in SELF_LOOPS:
        stored = stored.with_self_loops()
    edge_ids = torch.arange(len(stored.src) if kind in EDGE_IDS else 0, dtype=torch.int32)
    graph = dgl.graph(
        ("csc", (stored.indptr.int(), stored.src, edge_ids)), num_nodes=stored.num_vertices, idtype=torch.int32
    )
    scale = stored.gcn_scale().unsqueeze(1) if kind == "gcn" and not variant else torch.empty(0)
    weights = stored.gcn_weights() if variant else torch.empty(0)
    # The graph has the edges now; they need not be kept twice.
    return Loaded(graph, stored.without_edges(), scale, weights)


def build(specification: dict, loaded: Loaded) -> Training:
    """Model, weights, and the graph's other formats."""
    loaded.graph.create_formats_()
    stored = loaded.stored
    model = Model(specification, stored.features.shape[1], stored.num_classes)
    kind = specification["model"]
    names = f"{kind} {specification['variant']}".strip()
    copy_weights(specification["folder"], kind, model, RENAMED.get(names, {}), TRANSPOSED.get(names, ()))
    return training_of(specification, lambda: model(stored.features, loaded), model, stored)


if __name__ == "__main__":
    serve(load, build)
