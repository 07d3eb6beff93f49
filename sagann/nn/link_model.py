"""LinkModel: a model of vertices made into one of links, by a score for two rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sagann.errors import InputError, require_choice
from sagann.graph import Graph, Topology
from sagann.nn.on_vertices import OnVertices

DECODERS = ("dot", "distmult", "mlp")
"""Scores of two rows: 'dot' is their product; 'distmult' weighs each column by the type of the link; 'mlp' is two linear maps with a ReLU
between, of the product of each column."""


def product(src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
    """The product of rows [n, F] and [n, F]: a score for each link, [n]."""
    return (src * dst).sum(-1)


class LinkModel(OnVertices):
    """Gives each vertex a row, and two rows a score: how likely an edge joins the vertices.

    Args:
        gnn: a model that gives each vertex a row, called as ``gnn(hops, x)``.
        width: width of these rows.
        decoder: a name in :data:`DECODERS`.
        num_edge_types: number of types of links, for 'distmult'; 0 where links have no types.
        dropout: probability of dropping a hidden value of 'mlp'.
    References:
        Kipf and Welling, Variational Graph Auto-Encoders, NeurIPS workshop on Bayesian Deep Learning 2016 (dot); Yang et al., Embedding Entities
        and Relations for Learning and Inference in Knowledge Bases, ICLR 2015 (distmult).
    Example:
        >>> from sagann.nn import SAGE
        >>> from sagann.nn.stack import GNN
        >>> model = LinkModel(GNN([SAGE(4, 16), SAGE(16, 16)]), 16)
        >>> topology = Topology.from_coo(src=torch.tensor([0, 3]), dst=torch.tensor([1, 2]), num_src=5)
        >>> rows = model([topology] * 2, torch.randn(5, 4))
        >>> model.score(rows[[0, 3]], rows[[1, 2]], None).shape
        torch.Size([2])
    """

    def __init__(
        self,
        gnn: nn.Module,
        width: int,
        *,
        decoder: str = "dot",
        num_edge_types: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(gnn)
        require_choice(decoder, DECODERS, what="unknown decoder", where="LinkModel.decoder")
        self.decoder = decoder
        if decoder == "distmult":
            # Ones score as the product does.
            self.relations = nn.Parameter(torch.ones(max(1, num_edge_types), width))
        elif decoder == "mlp":
            self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 1))

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        """A row for each vertex, [num_vertices, width]."""
        return self.gnn(hops, x)

    def score(self, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
        """The logit of each link, [n], of rows [n, width] of its source and its destination, and of its type, int64 [n] or None."""
        if self.decoder == "dot":
            return product(src, dst, types)
        if self.decoder == "mlp":
            return self.head(src * dst).squeeze(-1)
        relations = self.relations if types is None else nn.functional.embedding(types, self.relations)
        return (src * relations * dst).sum(-1)


def decoder_of(name: str, graph: Graph) -> str:
    """The decoder that a configuration names; 'auto' is 'distmult' where edges have types, else 'dot'."""
    if name == "auto":
        return "distmult" if graph.num_edge_types else "dot"
    if name == "distmult" and not graph.num_edge_types:
        raise InputError(
            f"links have no types to tell apart: decoder = '{name}' (in graph '{graph.name}')",
            hint="Use decoder = 'dot' or 'mlp', or give the edges types.",
        )
    return name
