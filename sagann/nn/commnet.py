"""CommNet: every vertex hears the sum of its neighbours."""

from __future__ import annotations

from torch import Tensor, nn

from sagann.saga import SagaLayer


class CommNet(SagaLayer):
    r"""One round of communication between vertices.

    .. math:: h_u' = W_H h_u + W_C \sum_{v \to u} h_v + b

    The paper's ReLU stands between layers (:class:`sagann.nn.GNN`). Shapes: [num_src, in_dim] ->
    [num_dst, out_dim]. The same as PyG's ``GraphConv``.

    Args:
        in_dim: features per vertex.
        out_dim: outputs per vertex.
    References:
        Ma et al., NGra, 2018, Fig. 9; Sukhbaatar et al., NeurIPS 2016, Eq. 2 (there a mean over the others).
    """

    accumulator = "sum"

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_dim, out_dim, bias=False)
        self.heard = nn.Linear(in_dim, out_dim)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """W_H h + W_C accum + b."""
        return self.own(vertex) + self.heard(accum)
