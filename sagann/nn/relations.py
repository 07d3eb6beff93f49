"""Layers that read edge data: relations (edge types) and features of edges.

Each layer maps [num_src, in_dim] to [num_dst, out_dim].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.graph import Graph
from sagann.graph.large_arrays import empty_array, slabs
from sagann.graph.topology import Topology, destinations
from sagann.kernels.dense import typed_linear
from sagann.nn.layers import glorot_linear, require_arguments
from sagann.saga import Edge, SagaLayer


class GGNN(SagaLayer):
    r"""GG-NN: one step of a gated graph network. A model applies the step several times with the same parameters.

    .. math:: h_u' = \mathrm{GRU}\Bigl(\sum_{v \to u} A_{t(v \to u)} h_v,\; h_u\Bigr)

    Reads edge data ``"type"``. With one edge type the same as one step of PyG's ``GatedGraphConv``.

    Args:
        dim: features per vertex, and outputs per vertex.
        num_edge_types: number of edge types; 1 for a graph without types.
    Raises:
        InputError: ``num_edge_types`` is no integer of at least 1.
    References:
        Li et al., ICLR 2016, Eq. 2-6; Ma et al., NGra, 2018, Fig. 12.
    """

    accumulator = "sum"
    edge_data = "type"

    def __init__(self, dim: int, num_edge_types: int) -> None:
        super().__init__()
        require_arguments(self, dim=dim, num_edge_types=num_edge_types)
        self.maps = _maps(num_edge_types, dim, dim)
        self.gru = nn.GRUCell(dim, dim)

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        """Give a graph without edge types the type 0 on every edge."""
        return graph.with_topology(_typed(graph.topology))

    def apply_edge(self, edge: Edge) -> Tensor:
        return typed_linear(edge.src, edge.data, self.maps)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.gru(accum, vertex)


class RGCN(SagaLayer):
    r"""Relational graph convolution: for each relation a linear map of the mean over its in-edges, plus a map of the vertex.

    .. math:: h_u' = W_0 h_u + \sum_r \frac{1}{|N_r(u)|} \sum_{v \in N_r(u)} W_r h_v + b

    Reads edge data ``"type"``, the relation of each edge, and ``"relation_weight"``, one over the number of in-edges that
    the destination has in that relation of the whole graph. The same as PyG's ``RGCNConv`` there. In a mini-batch that samples some of
    the in-edges, PyG's divides by their number; here, as for the degree weights of GCN, the weights stay those of the whole graph.

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex.
        num_relations: number of relations; 1 for a graph without edge types.
    Raises:
        InputError: ``num_relations`` is no integer of at least 1.
    References:
        Schlichtkrull et al., Modeling Relational Data with Graph Convolutional Networks, ESWC 2018, Eq. 2, without a
        decomposition of the maps.
    """

    accumulator = "sum"
    edge_data = ("type", "relation_weight")

    def __init__(self, in_dim: int, out_dim: int, num_relations: int) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim, num_relations=num_relations)
        self.maps = _maps(num_relations, in_dim, out_dim)
        self.own = glorot_linear(in_dim, out_dim)

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        """Add edge data ``"relation_weight"``, and the type 0 on every edge of a graph without edge types."""
        topology = _typed(graph.topology)
        dtype = torch.float32 if graph.features is None else graph.features.dtype
        return graph.with_topology(topology.with_edge_data(relation_weight=_relation_weights(topology, dtype)))

    def apply_edge(self, edge: Edge) -> Tensor:
        return typed_linear(edge.src, edge.data["type"], self.maps) * edge.data["relation_weight"].unsqueeze(-1)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum + self.own(vertex)


class GINE(SagaLayer):
    r"""GIN with features of edges: an MLP on the vertex plus the sum of its in-neighbours, each with its edge's features added.

    .. math:: h_u' = \mathrm{MLP}\Bigl((1 + \epsilon) h_u + \sum_{v \to u} \mathrm{ReLU}(h_v + W_e e_{vu} + b_e)\Bigr)

    The MLP is linear, ReLU, linear, and ``out_dim`` wide. :math:`\epsilon` is learned, from 0. Reads edge data ``"attr"``, the
    features of each edge [num_edges, edge_dim]. The same as PyG's ``GINEConv(train_eps=True, edge_dim=edge_dim)``.

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex.
        edge_dim: features per edge; see :meth:`edge_dim_of`.
    References:
        Hu et al., Strategies for Pre-training Graph Neural Networks, ICLR 2020, Appendix A.
    """

    accumulator = "sum"
    edge_data = "attr"

    def __init__(self, in_dim: int, out_dim: int, edge_dim: int) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim, edge_dim=edge_dim)
        self.eps = nn.Parameter(torch.zeros(()))
        self.of_edge = nn.Linear(edge_dim, in_dim)
        self.mlp = nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))

    @staticmethod
    def edge_dim_of(graph: Graph) -> int:
        """Number of features per edge that :meth:`prepare` leaves: those of the graph, or else one for each edge type."""
        return graph.edge_dim or max(graph.num_edge_types, 1)

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        """Give edges without features (edge data ``"attr"``) their types as one-hot rows.

        Features of edges get the type of the vertices' features; those of one dimension get a second.
        """
        topology = graph.topology
        attributes = topology.edge_data.get("attr")
        types = topology.edge_data.get("type")
        dtype = torch.float32 if graph.features is None else graph.features.dtype
        if attributes is not None and attributes.ndim == 2 and attributes.dtype == dtype:
            return graph
        width = GINE.edge_dim_of(graph)
        made = empty_array((topology.num_edges, width), dtype, topology.device)
        for _, edges in slabs(topology.indptr):
            if attributes is not None:
                made[edges] = attributes[edges].reshape(-1, width).to(dtype)
            else:
                made[edges] = 1 if types is None else F.one_hot(types[edges].long(), width).to(dtype)
        return graph.with_topology(topology.with_edge_data(attr=made))

    def apply_edge(self, edge: Edge) -> Tensor:
        return torch.relu(edge.src + self.of_edge(edge.data))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.mlp((1 + self.eps) * vertex + accum)


def _maps(count: int, in_dim: int, out_dim: int) -> nn.Parameter:
    """A matrix with Glorot-uniform weights for each edge type, [count, in_dim, out_dim]."""
    maps = nn.Parameter(torch.empty(count, in_dim, out_dim))
    for matrix in maps.detach():
        nn.init.xavier_uniform_(matrix)
    return maps


def _typed(topology: Topology) -> Topology:
    """The topology with the type 0 on every edge, if its edges have no types."""
    if "type" in topology.edge_data:
        return topology
    return topology.with_edge_data(type=torch.zeros_like(topology.indices))


def _relation_weights(topology: Topology, dtype: torch.dtype) -> Tensor:
    """One over the number of in-edges of the same type at the same destination, for every edge."""
    types = topology.edge_data["type"]
    made = empty_array((topology.num_edges,), dtype, topology.device)
    for rows, edges in slabs(topology.indptr):
        if edges.stop == edges.start:
            continue
        width = int(types[edges].max()) + 1
        pairs = destinations(topology, rows, edges).long() * width + types[edges]
        _, pair_of_edge, counts = pairs.unique(return_inverse=True, return_counts=True)
        made[edges] = counts.double().reciprocal().to(dtype)[pair_of_edge]
    return made
