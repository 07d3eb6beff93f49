"""Gated GCN (G-GCN): a learned gate on every edge."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sagann.saga import Edge, SagaLayer


class GatedGCN(SagaLayer):
    r"""Each neighbour's features pass through a gate that both endpoints set.

    .. math:: h_u' = W \sum_{v \to u} \sigma(W_H h_u + W_C h_v + b_C) \odot h_v + b

    Shapes: [num_src, in_dim] -> [num_dst, out_dim]. PyG's ``ResGatedGraphConv`` with the identity as value map
    computes the sum.

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex.
    References:
        Marcheggiani and Titov, EMNLP 2017; Ma et al., NGra, 2018, Example 2.1 and Fig. 2.
    """

    accumulator = "sum"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.gate_dst = nn.Linear(in_dim, in_dim, bias=False)
        self.gate_src = nn.Linear(in_dim, in_dim)
        self.linear = nn.Linear(in_dim, out_dim)

    def apply_edge(self, edge: Edge) -> Tensor:
        """The gate times the source's row."""
        return torch.sigmoid(self.gate_dst(edge.dst) + self.gate_src(edge.src)) * edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """W accum + b."""
        return self.linear(accum)
