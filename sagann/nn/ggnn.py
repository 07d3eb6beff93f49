"""GG-NN: messages through a map of the edge's type, and a GRU at every vertex."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.kernels.typed_linear import typed_linear
from sagann.saga import Edge, SagaLayer


class GGNN(SagaLayer):
    r"""One step of a gated graph network; a model applies it several times with the same parameters.

    .. math:: h_u' = \mathrm{GRU}\Bigl(\sum_{v \to u} A_{t(v \to u)} h_v,\; h_u\Bigr)

    Reads edge data ``"type"``. Shapes: [num_src, dim] -> [num_dst, dim]. With one edge type the same as one step
    of PyG's ``GatedGraphConv``.

    Args:
        dim: features per vertex, kept by the layer.
        num_edge_types: number of edge types; a graph without types has 1.
    Raises:
        InputError: ``num_edge_types`` is not positive.
    References:
        Li et al., ICLR 2016, Eq. 2-6; Ma et al., NGra, 2018, Fig. 12.
    """

    accumulator = "sum"
    edge_data = "type"

    def __init__(self, dim: int, num_edge_types: int) -> None:
        super().__init__()
        if num_edge_types < 1:
            raise InputError(
                "a GG-NN layer needs edge types",
                value=f"num_edge_types = {num_edge_types}, at least 1",
                where="GGNN",
                fix="Pass 1 for a graph whose edges are all alike.",
            )
        self.maps = nn.Parameter(torch.empty(num_edge_types, dim, dim))
        for matrix in self.maps.detach():
            nn.init.xavier_uniform_(matrix)
        self.gru = nn.GRUCell(dim, dim)

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        """Give a graph without edge types the type 0 on every edge."""
        topology = graph.topology
        if "type" in topology.edge_data:
            return graph
        return graph.with_topology(topology.with_edge_data(type=torch.zeros_like(topology.indices)))

    def apply_edge(self, edge: Edge) -> Tensor:
        """The source's row through the map of the edge's type."""
        return typed_linear(edge.src, edge.data, self.maps)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """GRU(accum, vertex)."""
        return self.gru(accum, vertex)
