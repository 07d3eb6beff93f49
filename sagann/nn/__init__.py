"""The model zoo: layers in SAGA form, and models made of them."""

from sagann.nn.layers import GAT, GCN, GGNN, GIN, SAGE, CommNet, GatedGCN, MaxPoolGCN, ResidualGCN
from sagann.nn.stack import GNN, EmbeddingEncoder, LinearEncoder
from sagann.nn.zoo import MODELS, ModelConfig, build_model

__all__ = [
    "GAT",
    "GCN",
    "GGNN",
    "GIN",
    "GNN",
    "MODELS",
    "SAGE",
    "CommNet",
    "EmbeddingEncoder",
    "GatedGCN",
    "LinearEncoder",
    "MaxPoolGCN",
    "ModelConfig",
    "ResidualGCN",
    "build_model",
]
