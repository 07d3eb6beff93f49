"""Initialisation of parameters as the papers of GCN and GAT have it."""

from __future__ import annotations

from torch import nn


def glorot_linear(in_dim: int, out_dim: int, *, bias: bool = True) -> nn.Linear:
    """A linear map with Glorot-uniform weights and zero bias (Glorot and Bengio, AISTATS 2010, Eq. 16)."""
    linear = nn.Linear(in_dim, out_dim, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
