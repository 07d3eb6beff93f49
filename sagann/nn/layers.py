"""The layers of the zoo that read vertices alone, from the plainest to the richest; and the check of arguments that all layers are made with.

Each layer maps [num_src, in_dim] to [num_dst, out_dim]. ``in_dim`` is the number of features per vertex, ``out_dim`` the
number of outputs.
"""

from __future__ import annotations

from numbers import Integral, Real

import torch
from torch import Tensor, nn

from sagann.errors import InputError, shown
from sagann.graph import Graph, add_self_loops, normalise
from sagann.saga import Edge, SagaLayer


class CommNet(SagaLayer):
    r"""One round of communication: every vertex hears the sum of its in-neighbours.

    .. math:: h_u' = W_H h_u + W_C \sum_{v \to u} h_v + b

    The paper's ReLU stands between layers (:class:`sagann.nn.GNN`). The same as PyG's ``GraphConv``.

    References:
        Ma et al., NGra, 2018, Fig. 9; Sukhbaatar et al., NeurIPS 2016, Eq. 2 (which has a mean over the other vertices).
    """

    accumulator = "sum"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim)
        self.own = nn.Linear(in_dim, out_dim, bias=False)
        self.heard = nn.Linear(in_dim, out_dim)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.own(vertex) + self.heard(accum)


class SAGE(SagaLayer):
    r"""GraphSAGE: a linear map of the vertex plus a linear map of the mean of its in-neighbours.

    .. math:: h_u' = W_S h_u + W_N \frac{1}{|N(u)|} \sum_{v \to u} h_v + b

    The same as PyG's ``SAGEConv``.

    References:
        Hamilton et al., NeurIPS 2017, Algorithm 1 with the mean aggregator.
    """

    accumulator = "mean"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim)
        self.own = nn.Linear(in_dim, out_dim, bias=False)
        self.neighbours = nn.Linear(in_dim, out_dim)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.own(vertex) + self.neighbours(accum)


class GIN(SagaLayer):
    r"""Graph isomorphism network: an MLP on the sum of the vertex and its in-neighbours.

    .. math:: h_u' = \mathrm{MLP}\Bigl((1 + \epsilon) h_u + \sum_{v \to u} h_v\Bigr)

    The MLP is linear, ReLU, linear, and ``out_dim`` wide. :math:`\epsilon` is learned, from 0. The same as PyG's
    ``GINConv(train_eps=True)``.

    References:
        Xu et al., ICLR 2019, Eq. 4.1.
    """

    accumulator = "sum"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim)
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.mlp((1 + self.eps) * vertex + accum)


class MaxPoolGCN(SagaLayer):
    r"""The element-wise maximum over in-neighbours that have passed a small network.

    .. math:: h_u' = W \max_{v \to u} \mathrm{ReLU}(W_{pool} h_v + b_{pool}) + b

    The pooling network is ``in_dim`` wide. The same as PyG's ``SAGEConv(aggr="max", project=True, root_weight=False)``.

    References:
        Hamilton et al., NeurIPS 2017, Eq. 3; Ma et al., NGra, 2018, Fig. 11.
    """

    accumulator = "max"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim)
        self.pool = nn.Linear(in_dim, in_dim)
        self.linear = nn.Linear(in_dim, out_dim)

    def apply_edge(self, edge: Edge) -> Tensor:
        return torch.relu(self.pool(edge.src))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.linear(accum)


class GatedGCN(SagaLayer):
    r"""G-GCN: each in-neighbour's features pass through a gate that both ends of the edge set.

    .. math:: h_u' = W \sum_{v \to u} \sigma(W_H h_u + W_C h_v + b_C) \odot h_v + b

    PyG's ``ResGatedGraphConv`` with the identity as value map computes the sum.

    References:
        Marcheggiani and Titov, EMNLP 2017; Ma et al., NGra, 2018, Example 2.1 and Fig. 2.
    """

    accumulator = "sum"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim)
        self.gate_dst = nn.Linear(in_dim, in_dim, bias=False)
        self.gate_src = nn.Linear(in_dim, in_dim)
        self.linear = nn.Linear(in_dim, out_dim)

    def apply_edge(self, edge: Edge) -> Tensor:
        return torch.sigmoid(self.gate_dst(edge.dst) + self.gate_src(edge.src)) * edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.linear(accum)


class GCN(SagaLayer):
    r"""Graph convolution with symmetric degree weights.

    .. math:: h_u' = W \sum_{v \to u} \frac{1}{\sqrt{d_u d_v}} h_v + b

    over the graph with self-loops. The same as PyG's ``GCNConv``.

    References:
        Kipf and Welling, ICLR 2017, Eq. 2; Ma et al., NGra, 2018, Fig. 10.
    """

    accumulator = "sum"
    edge_data = "gcn_weight"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim)
        self.linear = glorot_linear(in_dim, out_dim)

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        """Add self-loops and symmetric degree weights (edge data ``"gcn_weight"``); a graph that has both stays as it is.

        Degrees are sums of edge data ``"weight"`` where the graph has such. Where loops are added, edge data besides
        ``"weight"`` and ``"type"`` is left out: it has no value for a loop.
        """
        dtype = torch.float32 if graph.features is None else graph.features.dtype
        looped = add_self_loops(graph, leave_out=True)
        return normalise(looped, "symmetric", name="gcn_weight", dtype=dtype)

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src * edge.data.unsqueeze(-1)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.linear(accum)


class ResidualGCN(GCN):
    r"""ROC's layer for deep stacks: a graph convolution plus a shortcut.

    .. math:: h_u' = \sigma(\mathrm{GCN}(h)_u) + S h_u

    S is the identity where ``in_dim == out_dim``, else a learned linear map.

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex.
        activated: :math:`\sigma` is ReLU; false for the identity, in the last layer of a stack.
        linear_shortcut: learn S even where the identity would fit.
    References:
        Jia et al., ROC, MLSys 2020, Sec. 7.5 (the equation of "Deeper and Larger GNN Architectures").
    """

    def __init__(self, in_dim: int, out_dim: int, *, activated: bool = True, linear_shortcut: bool = False) -> None:
        super().__init__(in_dim, out_dim)
        self.activated = activated
        identity = in_dim == out_dim and not linear_shortcut
        self.shortcut = nn.Identity() if identity else nn.Linear(in_dim, out_dim, bias=False)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        convolved = self.linear(accum)
        return (torch.relu(convolved) if self.activated else convolved) + self.shortcut(vertex)


class EdgeConv(SagaLayer):
    r"""Edge convolution: the element-wise maximum over maps of a vertex and of its differences to in-neighbours.

    .. math:: h_u' = \max_{v \to u}\; W_1 h_u + W_2 (h_v - h_u) + b

    The paper's ReLU stands between layers (:class:`sagann.nn.GNN`); before the maximum it would be the same. The same as PyG's
    ``EdgeConv(nn.Linear(2 * in_dim, out_dim))``.

    References:
        Wang et al., Dynamic Graph CNN for Learning on Point Clouds, ACM TOG 2019, Eq. 7-8, on a fixed graph.
    """

    accumulator = "max"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim)
        self.linear = glorot_linear(2 * in_dim, out_dim)

    def apply_edge(self, edge: Edge) -> Tensor:
        return self.linear(torch.cat([edge.dst, edge.src - edge.dst], dim=-1))


class PNA(SagaLayer):
    r"""Principal neighbourhood aggregation: mean, minimum, maximum and standard deviation, each with three scalers of the degree.

    .. math::
        m_{vu} = W_m [h_u; h_v] + b_m, \qquad
        h_u' = W_2 \bigl(W_1 [h_u;\; S(d_u) \otimes (\mathrm{mean}, \min, \max, \mathrm{std})_v\, m_{vu}] + b_1\bigr) + b_2,
        \qquad S(d) = \Bigl(1,\; \frac{\log(d + 1)}{\delta},\; \frac{\delta}{\log(d + 1)}\Bigr)

    d is the in-degree, at least 1 in the last scaler. :math:`\delta` is the mean of log(d + 1) over the vertices of the training
    graph; it is a buffer, so that a saved model keeps it on other graphs. The same as PyG's ``PNAConv`` with these aggregators
    and the scalers identity, amplification and attenuation.

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex.
        mean_log_degree: :math:`\delta`; see :meth:`mean_log_degree_of`.
    References:
        Corso et al., Principal Neighbourhood Aggregation for Graph Nets, NeurIPS 2020, Eq. 5-8.
    """

    accumulator = {"rows": ("mean", "min", "max", "std"), "degree": "sum"}
    mean_log_degree: Tensor

    def __init__(self, in_dim: int, out_dim: int, mean_log_degree: float) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim)
        self.message = nn.Linear(2 * in_dim, in_dim)
        self.mix, self.out = nn.Linear(13 * in_dim, out_dim), nn.Linear(out_dim, out_dim)
        # A graph without edges has a mean of 0, and nothing that it would scale.
        self.register_buffer("mean_log_degree", torch.tensor(mean_log_degree or 1.0))

    @staticmethod
    def mean_log_degree_of(graph: Graph) -> float:
        """The mean of log(d + 1) over the in-degrees d of the graph's vertices; 0 for a graph without edges."""
        degrees = graph.topology.in_degrees()
        return float(torch.log1p(degrees.double()).mean()) if len(degrees) else 0.0

    def apply_edge(self, edge: Edge) -> dict[str, Tensor]:
        message = self.message(torch.cat([edge.dst, edge.src], dim=-1))
        return {"rows": message, "degree": torch.ones_like(message[:, :1])}

    def apply_vertex(self, vertex: Tensor, accum: dict[str, Tensor]) -> Tensor:
        rows, degree = accum["rows"], accum["degree"]
        more = torch.log1p(degree) / self.mean_log_degree
        less = self.mean_log_degree / torch.log1p(degree.clamp(min=1))
        return self.out(self.mix(torch.cat([vertex, rows, more * rows, less * rows], dim=-1)))


def glorot_linear(in_dim: int, out_dim: int, *, bias: bool = True) -> nn.Linear:
    """A linear map with Glorot-uniform weights and zero bias (Glorot and Bengio, AISTATS 2010, Eq. 16)."""
    linear = nn.Linear(in_dim, out_dim, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


_COUNTS = ("num_heads", "num_edge_types", "num_relations", "steps")
_SHARES = ("dropout", "attention_dropout", "teleport")


def require_arguments(layer: nn.Module, **values: object) -> None:
    """Refuse arguments of a constructor, by name: counts below 1, shares that are not from 0 to 1, and widths below 0, such as PyG's -1."""
    for name, value in values.items():
        least = int(name in _COUNTS)
        fits, expected = isinstance(value, Integral) and int(value) >= least, f"an integer of at least {least}"
        hint = f"Change {name}."
        if name in _SHARES:
            fits, expected = isinstance(value, Real) and 0 <= float(value) <= 1, "a number from 0 to 1"
        elif not least:
            hint = (
                "Pass a number of columns, as graph.num_features: a layer makes its parameters when it is made, and finds out no width "
                "later, as PyG's -1 does. Sources and destinations have one width."
            )
        if not fits:
            raise InputError(
                f"argument of a layer is out of range: {name} = {shown(value)}, expected {expected} (in {type(layer).__name__})",
                hint=hint,
            )
