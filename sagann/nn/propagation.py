"""Propagation without parameters: SGC and APPNP map each vertex by itself, and then pass the results on over several hops.

Both are whole models: the rows that travel are as wide as the output, and every hop walks the same graph weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from sagann.graph import Topology
from sagann.kernels.row_dropout import dropout
from sagann.nn.layers import GCN, require_share
from sagann.saga import Edge, SagaLayer


class Propagation(SagaLayer):
    r"""One hop of propagation with symmetric degree weights, and a share of the rows that the propagation started from.

    .. math:: z_u' = (1 - \alpha) \sum_{v \to u} \frac{1}{\sqrt{d_u d_v}} z_v + \alpha h_u

    over the graph with self-loops. The layer is called with {"state": z, "start": h}, each [num_src, F]. With
    :math:`\alpha = 0` the same as one hop of PyG's ``SGConv``, else as one of its ``APPNP``.

    Args:
        teleport: :math:`\alpha`, from 0 to 1.
    Raises:
        InputError: ``teleport`` is not from 0 to 1.
    References:
        Gasteiger et al., Predict then Propagate, ICLR 2019, Eq. 4.
    """

    accumulator = "sum"
    edge_data = "gcn_weight"
    prepare = staticmethod(GCN.prepare)

    def __init__(self, teleport: float = 0.0) -> None:
        super().__init__()
        require_share(self, teleport=teleport)
        self.teleport = teleport

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src["state"] * edge.data.unsqueeze(-1)

    def apply_vertex(self, vertex: Mapping[str, Tensor], accum: Tensor) -> Tensor:
        return (1 - self.teleport) * accum + self.teleport * vertex["start"] if self.teleport else accum


class Propagated(nn.Module):
    """A model of rows, whose results are propagated over several hops.

    ``model(hops, x)`` walks one topology per hop. ``x`` is [num_src, F] for the first topology, the result [num_dst, out_dim] for the
    last one.

    - SGC: a linear map, hops without teleport, and a bias. The map comes first, because it commutes with the propagation and
      makes rows narrower.
    - APPNP: a network of two maps, then hops with teleport.

    Args:
        encoder: a row-wise module of the features, which may be sparse.
        head: a row-wise module after a ReLU and dropout; None where the encoder's rows are propagated.
        hops: number of hops.
        teleport: as of :class:`Propagation`.
        dropout: probability of dropping an input of ``head``.
        bias_dim: width of a bias that is added after the last hop; 0 for none.
    References:
        Wu et al., Simplifying Graph Convolutional Networks, ICML 2019, Eq. 8; Gasteiger et al., Predict then Propagate, ICLR
        2019, Eq. 4, without dropout of the features and of edges.
    Example:
        >>> from sagann.graph import Graph
        >>> model = Propagated(nn.Linear(4, 3), None, hops=2, teleport=0.0)
        >>> graph = Graph(
        ...     topology=Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([1, 2]), num_src=3),
        ...     features=torch.ones(3, 4),
        ... )
        >>> graph = model.prepare(graph)
        >>> model(graph.hops(2), graph.features).shape
        torch.Size([3, 3])
    """

    takes_sparse_features: ClassVar[bool] = True
    "The features of a graph may be ``torch.sparse_csr``: the encoder alone reads them."
    prepare = staticmethod(GCN.prepare)

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module | None,
        *,
        hops: int,
        teleport: float,
        dropout: float = 0.0,
        bias_dim: int = 0,
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.bias = nn.Parameter(torch.zeros(bias_dim)) if bias_dim else None
        self.propagation = Propagation(teleport)
        self.num_hops, self.dropout = hops, dropout

    def forward(self, hops: Sequence[Topology], x: Tensor | None) -> Tensor:
        rows = self.encoder(x)
        if self.head is not None:
            rows = torch.relu(rows)
            rows = self.head(dropout(rows, self.dropout) if self.training and self.dropout else rows)
        state = start = rows
        for topology in hops:
            if len(start) > topology.num_src:
                # A sampled hop has its destinations, and so the next hop's sources, first.
                start = start[: topology.num_src]
            state = self.propagation(topology, {"state": state, "start": start})
        return state if self.bias is None else state + self.bias
