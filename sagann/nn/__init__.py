"""The model zoo: layers in SAGA form, and models made of them."""

from sagann.config import ModelConfig
from sagann.nn.attention import GAT, GATv2, TransformerConv, attention_weights
from sagann.nn.layers import GCN, GIN, PNA, SAGE, CommNet, EdgeConv, GatedGCN, MaxPoolGCN, ResidualGCN
from sagann.nn.on_vertices import GraphModel, LinkModel, pool
from sagann.nn.relations import GGNN, GINE, RGCN
from sagann.nn.stack import GNN, EmbeddingEncoder, LinearEncoder, Propagated, Propagation
from sagann.nn.zoo import MODELS, build_model

__all__ = [
    "GAT",
    "GCN",
    "GGNN",
    "GIN",
    "GINE",
    "GNN",
    "MODELS",
    "PNA",
    "RGCN",
    "SAGE",
    "CommNet",
    "EdgeConv",
    "EmbeddingEncoder",
    "GATv2",
    "GatedGCN",
    "GraphModel",
    "LinearEncoder",
    "LinkModel",
    "MaxPoolGCN",
    "ModelConfig",
    "Propagated",
    "Propagation",
    "ResidualGCN",
    "TransformerConv",
    "attention_weights",
    "build_model",
    "pool",
]
