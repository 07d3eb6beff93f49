"""GIN: sum of neighbours and self, then a small network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sagann.saga import SagaLayer


class GIN(SagaLayer):
    r"""The most discriminating of the sum-based layers.

    .. math:: h_u' = \mathrm{MLP}\Bigl((1 + \epsilon) h_u + \sum_{v \to u} h_v\Bigr)

    The MLP is linear, ReLU, linear; :math:`\epsilon` is learned from 0. Shapes: [num_src, in_dim] ->
    [num_dst, out_dim]. The same as PyG's ``GINConv(train_eps=True)``.

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex, and width of the MLP.
    References:
        Xu et al., ICLR 2019, Eq. 4.1.
    """

    accumulator = "sum"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """MLP((1 + eps) vertex + accum)."""
        return self.mlp((1 + self.eps) * vertex + accum)
