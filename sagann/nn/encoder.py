"""Encoders: bring sparse or missing vertex features to the width of the first layer.

Encoders are row-wise, so a model with an encoder still runs on blocks and streams.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sagann.errors import InputError
from sagann.kernels.feature_rows import FeatureRows
from sagann.nn.layers import glorot_linear


class LinearEncoder(nn.Module):
    """A linear map of dense or ``torch.sparse_csr`` features: [num_vertices, in_dim] -> [num_vertices, out_dim].

    Sparse rows cost their non-zeros only.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = glorot_linear(in_dim, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        if x.layout != torch.sparse_csr:
            return self.linear(x)
        return FeatureRows(x).linear(self.linear.weight, self.linear.bias)


class EmbeddingEncoder(nn.Module):
    """A learned row per vertex, for graphs without features. The rows are of no use on another graph.

    Args:
        num_vertices: number of rows.
        out_dim: width of a row.
    """

    def __init__(self, num_vertices: int, out_dim: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.empty(num_vertices, out_dim))
        nn.init.xavier_uniform_(self.rows)

    def forward(self, x: Tensor | None) -> Tensor:
        """The learned rows; ``x`` must be None, or of width 0."""
        if x is not None and x.shape[1]:
            raise InputError(
                "a model with an embedding per vertex takes no features",
                value=f"features {list(x.shape)}",
                where="EmbeddingEncoder",
                fix="Train with encoder = 'linear' or 'none' where the graph has features.",
            )
        return self.rows
