"""Layers that gather one message in richer ways than a sum: differences to neighbours, and several statistics at once.

Each layer maps [num_src, in_dim] to [num_dst, out_dim].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sagann.graph import Graph
from sagann.nn.layers import glorot_linear, require_widths
from sagann.saga import Edge, SagaLayer


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
        require_widths(self, in_dim=in_dim, out_dim=out_dim)
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
        require_widths(self, in_dim=in_dim, out_dim=out_dim)
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
