"""GAT: neighbours weighted by attention, several heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.graph import Graph, add_self_loops
from sagann.nn.init import glorot_linear
from sagann.saga import Edge, SagaLayer


class GAT(SagaLayer):
    r"""Attention over the in-edges, one softmax per destination and head.

    .. math::
        s_{vu} = \mathrm{LeakyReLU}(a_s^T W h_v + a_d^T W h_u), \qquad
        h_u' = \sum_{v \to u} \mathrm{softmax}_v(s_{vu})\, W h_v + b

    over the graph with self-loops (:meth:`prepare`). Heads are concatenated, or averaged where ``concat`` is
    false. Dropout of attention coefficients is applied to the values, which is the same. Shapes:
    [num_src, in_dim] -> [num_dst, num_heads * head_dim], or [num_dst, head_dim]. The same as PyG's ``GATConv``.

    Args:
        in_dim: features per vertex.
        head_dim: outputs per vertex and head.
        num_heads: number of heads.
        concat: concatenate the heads' outputs; else average them.
        negative_slope: of the LeakyReLU.
        attention_dropout: probability of dropping a coefficient.
    References:
        Velickovic et al., ICLR 2018, Eq. 1-6.
    """

    accumulator = "softmax"

    def __init__(
        self,
        in_dim: int,
        head_dim: int,
        *,
        num_heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.concat = num_heads, head_dim, concat
        self.negative_slope, self.attention_dropout = negative_slope, attention_dropout
        self.project = glorot_linear(in_dim, num_heads * head_dim, bias=False)
        self.attend_src = nn.Parameter(torch.empty(num_heads, head_dim))
        self.attend_dst = nn.Parameter(torch.empty(num_heads, head_dim))
        nn.init.xavier_uniform_(self.attend_src)
        nn.init.xavier_uniform_(self.attend_dst)
        self.bias = nn.Parameter(torch.zeros(num_heads * head_dim if concat else head_dim))

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        """Add self-loops; where some are missing, edge data besides 'weight' and 'type' is left out."""
        return add_self_loops(graph, leave_out=True)

    def apply_edge(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """Scores [num_edges, H] and values [num_edges, H, D]."""
        value = self.project(edge.src)
        score = F.linear(value, _per_head(self.attend_src))
        score = score + F.linear(self.project(edge.dst), _per_head(self.attend_dst))
        score = F.leaky_relu(score, self.negative_slope)
        value = value.view(-1, self.num_heads, self.head_dim)
        if self.attention_dropout:
            value = value * F.dropout(torch.ones_like(score), self.attention_dropout, self.training).unsqueeze(-1)
        return score, value

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """Concatenate or average the heads, add the bias."""
        return (accum.flatten(1) if self.concat else accum.mean(1)) + self.bias


def _per_head(attend: Tensor) -> Tensor:
    """[H, D] as a linear map [H, H * D] that multiplies each head's values by its own attention."""
    return torch.diag_embed(attend.T).permute(1, 2, 0).flatten(1)
