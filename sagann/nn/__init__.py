"""The model zoo: layers in SAGA form, and models made of them."""

from sagann.config import ModelConfig
from sagann.nn.attention import GAT, GATv2, TransformerConv, attention_weights
from sagann.nn.layers import GCN, GIN, SAGE, CommNet, GatedGCN, MaxPoolGCN, ResidualGCN
from sagann.nn.neighbourhoods import PNA, EdgeConv
from sagann.nn.on_vertices import GraphModel, LinkModel
from sagann.nn.pooling import pool
from sagann.nn.propagation import Propagated, Propagation
from sagann.nn.relations import GGNN, GINE, RGCN
from sagann.nn.stack import GNN, EmbeddingEncoder, LinearEncoder
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
