"""The model zoo: layers in SAGA form, and models made of them."""

from typing import TYPE_CHECKING

from sagann.config import ModelConfig
from sagann.nn.layers import GCN, GIN, PNA, SAGE, CommNet, EdgeConv, GatedGCN, MaxPoolGCN, ResidualGCN
from sagann.nn.on_vertices import GraphModel, LinkModel, pool
from sagann.nn.stack import GNN, EmbeddingEncoder, LinearEncoder, Propagated, Propagation
from sagann.nn.zoo import MODELS, build_model
from sagann.registry import import_lazily

if TYPE_CHECKING:
    from sagann.nn.attention import (
        GAT as GAT,
        GATv2 as GATv2,
        TransformerConv as TransformerConv,
        attention_weights as attention_weights,
    )
    from sagann.nn.relations import GGNN as GGNN, GINE as GINE, RGCN as RGCN

__all__ = [
    "GCN",
    "GIN",
    "GNN",
    "MODELS",
    "PNA",
    "SAGE",
    "CommNet",
    "EdgeConv",
    "EmbeddingEncoder",
    "GatedGCN",
    "GraphModel",
    "LinearEncoder",
    "LinkModel",
    "MaxPoolGCN",
    "ModelConfig",
    "Propagated",
    "Propagation",
    "ResidualGCN",
    "build_model",
    "pool",
    *import_lazily(
        __name__,
        {"attention": "GAT GATv2 TransformerConv attention_weights", "relations": "GGNN GINE RGCN"},
    ),
]
