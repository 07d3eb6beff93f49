"""GCN: a sum of neighbours weighted by degree; and ROC's residual layer, for deep stacks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sagann.graph import Graph, add_self_loops, normalise
from sagann.nn.init import glorot_linear
from sagann.saga import Edge, SagaLayer


class GCN(SagaLayer):
    r"""Graph convolution with symmetric degree weights.

    .. math:: h_u' = W \sum_{v \to u} \frac{1}{\sqrt{d_u d_v}} h_v + b

    over the graph with self-loops; :meth:`prepare` adds them and the degree weights (edge data ``"gcn_weight"``,
    from ``"weight"`` where the graph has it). Shapes: [num_src, in_dim] -> [num_dst, out_dim]. The same as PyG's ``GCNConv``.

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex.
    References:
        Kipf and Welling, ICLR 2017, Eq. 2; Ma et al., NGra, 2018, Fig. 10.
    """

    accumulator = "sum"
    edge_data = "gcn_weight"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = glorot_linear(in_dim, out_dim)

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        """Add self-loops and symmetric degree weights; a graph that has them stays as it is.

        Where loops are added, edge data besides 'weight' and 'type' is left out: it has no value for them.
        """
        dtype = torch.float32 if graph.features is None else graph.features.dtype
        looped = add_self_loops(graph, leave_out=True)
        return normalise(looped, "symmetric", name="gcn_weight", dtype=dtype)

    def apply_edge(self, edge: Edge) -> Tensor:
        """The source's row times the edge's weight."""
        return edge.src * edge.data.unsqueeze(-1)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """W accum + b."""
        return self.linear(accum)


class ResidualGCN(GCN):
    r"""ROC's layer for deep stacks: a graph convolution plus a shortcut.

    .. math:: h_u' = \sigma(\mathrm{GCN}(h)_u) + S h_u

    S is the identity where ``in_dim == out_dim``, else a learned linear map. :math:`\sigma` is ReLU, and absent
    where ``activated`` is false (the last layer of a stack). Shapes: [num_src, in_dim] -> [num_dst, out_dim].

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex.
        activated: apply ReLU to the convolution.
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
        """ReLU(W accum + b) + S vertex."""
        convolved = self.linear(accum)
        return (torch.relu(convolved) if self.activated else convolved) + self.shortcut(vertex)
