"""Max-pooling GCN: the element-wise maximum over transformed neighbours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sagann.saga import Edge, SagaLayer


class MaxPoolGCN(SagaLayer):
    r"""Each neighbour goes through a small network, then the largest value of each feature is kept.

    .. math:: h_u' = W \max_{v \to u} \mathrm{ReLU}(W_{pool} h_v + b_{pool}) + b

    Shapes: [num_src, in_dim] -> [num_dst, out_dim]. The same as PyG's ``SAGEConv(aggr="max", project=True,
    root_weight=False)``.

    Args:
        in_dim: features per vertex, and width of the pooling network.
        out_dim: outputs per vertex.
    References:
        Hamilton et al., NeurIPS 2017, Eq. 3; Ma et al., NGra, 2018, Fig. 11.
    """

    accumulator = "max"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.pool = nn.Linear(in_dim, in_dim)
        self.linear = nn.Linear(in_dim, out_dim)

    def apply_edge(self, edge: Edge) -> Tensor:
        """ReLU(W_pool src + b_pool)."""
        return torch.relu(self.pool(edge.src))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """W accum + b."""
        return self.linear(accum)
