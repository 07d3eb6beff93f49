"""GraphSAGE: a vertex and the mean of its neighbours."""

from __future__ import annotations

from torch import Tensor, nn

from sagann.saga import SagaLayer


class SAGE(SagaLayer):
    r"""One linear map for the vertex, one for the mean of its in-neighbours.

    .. math:: h_u' = W_S h_u + W_N \frac{1}{|N(u)|} \sum_{v \to u} h_v + b

    Shapes: [num_src, in_dim] -> [num_dst, out_dim]. The same as PyG's ``SAGEConv``.

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex.
    References:
        Hamilton et al., NeurIPS 2017, Algorithm 1 with the mean aggregator.
    """

    accumulator = "mean"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_dim, out_dim, bias=False)
        self.neighbours = nn.Linear(in_dim, out_dim)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """W_S vertex + W_N accum + b."""
        return self.own(vertex) + self.neighbours(accum)
