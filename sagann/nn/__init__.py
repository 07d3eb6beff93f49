"""The model zoo: layers in SAGA form, and models made of them."""

from sagann.nn.commnet import CommNet
from sagann.nn.encoder import EmbeddingEncoder, LinearEncoder
from sagann.nn.gat import GAT
from sagann.nn.gated_gcn import GatedGCN
from sagann.nn.gcn import GCN, ResidualGCN
from sagann.nn.ggnn import GGNN
from sagann.nn.gin import GIN
from sagann.nn.maxpool_gcn import MaxPoolGCN
from sagann.nn.sage import SAGE
from sagann.nn.stack import GNN
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
