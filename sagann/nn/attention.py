"""Attention: layers whose messages are weighted by a softmax over the in-edges of each destination.

Each layer maps [num_src, in_dim] to [num_dst, num_heads * head_dim], or to [num_dst, head_dim] where heads are averaged. Dropout of
attention coefficients is applied to the values, which is the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.errors import InputError, LayerError
from sagann.graph import Graph, Topology, add_self_loops
from sagann.graph.large_arrays import slabs
from sagann.graph.rows import is_sparse
from sagann.graph.topology import destinations
from sagann.kernels.naive import gather_denominator
from sagann.nn.layers import glorot_linear, require_arguments
from sagann.saga import Edge, SagaLayer
from sagann.saga.edge import named
from sagann.saga.layer import check_input


class _Attention(SagaLayer):
    """Heads: their number and width, dropout of their coefficients, and how their results are put together."""

    accumulator = "softmax"

    def __init__(
        self,
        in_dim: int,
        head_dim: int,
        *,
        num_heads: int = 1,
        concat: bool = True,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_arguments(
            self, in_dim=in_dim, head_dim=head_dim, num_heads=num_heads, attention_dropout=attention_dropout
        )
        self.num_heads, self.head_dim, self.concat = num_heads, head_dim, concat
        self.attention_dropout = attention_dropout
        self._make_maps(in_dim)

    def _make_maps(self, in_dim: int) -> None:
        """Make the linear maps of the inputs: a hook of subclasses."""

    @property
    def out_dim(self) -> int:
        """Number of outputs per vertex."""
        return self.num_heads * self.head_dim if self.concat else self.head_dim

    def per_head(self, rows: Tensor) -> Tensor:
        """Rows [n, H * D] by head: [n, H, D]."""
        return rows.unflatten(-1, (self.num_heads, self.head_dim))

    def dropped(self, value: Tensor, score: Tensor) -> Tensor:
        """Values [E, H, D] times what dropout leaves of a one for every score [E, H]."""
        if not self.attention_dropout:
            return value
        return value * F.dropout(torch.ones_like(score), self.attention_dropout, self.training).unsqueeze(-1)

    def joined(self, accum: Tensor) -> Tensor:
        """The heads' results [n, H, D] concatenated or averaged: [n, out_dim]."""
        return accum.flatten(1) if self.concat else accum.mean(1)


class GAT(_Attention):
    r"""Attention over the in-edges, one softmax per destination and head.

    .. math::
        s_{vu} = \mathrm{LeakyReLU}(a_s^T W h_v + a_d^T W h_u), \qquad
        h_u' = \sum_{v \to u} \mathrm{softmax}_v(s_{vu})\, W h_v + b

    over the graph with self-loops. The same as PyG's ``GATConv``.

    Args:
        in_dim: features per vertex.
        head_dim: outputs per vertex and head.
        num_heads: number of heads.
        concat: concatenate the heads' outputs; false averages them.
        negative_slope: slope of the LeakyReLU below 0.
        attention_dropout: probability of dropping a coefficient.
    References:
        Velickovic et al., ICLR 2018, Eq. 1-6.
    """

    def __init__(
        self,
        in_dim: int,
        head_dim: int,
        *,
        num_heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__(in_dim, head_dim, num_heads=num_heads, concat=concat, attention_dropout=attention_dropout)
        self.negative_slope = negative_slope
        self.bias = nn.Parameter(torch.zeros(self.out_dim))

    def _make_maps(self, in_dim: int) -> None:
        self.project = glorot_linear(in_dim, self.num_heads * self.head_dim, bias=False)
        self.attend_src = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        self.attend_dst = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        nn.init.xavier_uniform_(self.attend_src)
        nn.init.xavier_uniform_(self.attend_dst)

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        """Add self-loops. Where some are missing, edge data besides ``"weight"`` and ``"type"`` is left out."""
        return add_self_loops(graph, leave_out=True)

    def apply_edge(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """Scores [num_edges, H] and values [num_edges, H, D]."""
        value = self.project(edge.src)
        score = F.linear(value, _per_head(self.attend_src))
        score = score + F.linear(self.project(edge.dst), _per_head(self.attend_dst))
        score = F.leaky_relu(score, self.negative_slope)
        return score, self.dropped(self.per_head(value), score)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.joined(accum) + self.bias


class GATv2(GAT):
    r"""Attention whose scores depend on both ends together: GAT's LeakyReLU comes before the product with the attention vector.

    .. math::
        s_{vu} = a^T \mathrm{LeakyReLU}(W_s h_v + W_d h_u), \qquad
        h_u' = \sum_{v \to u} \mathrm{softmax}_v(s_{vu})\, W_s h_v + b

    over the graph with self-loops. :math:`W_s` and :math:`W_d` have biases. Arguments and result are those of :class:`GAT`. The same as PyG's
    ``GATv2Conv``.

    References:
        Brody et al., How Attentive are Graph Attention Networks?, ICLR 2022, Eq. 7.
    """

    def _make_maps(self, in_dim: int) -> None:
        self.of_src = glorot_linear(in_dim, self.num_heads * self.head_dim)
        self.of_dst = glorot_linear(in_dim, self.num_heads * self.head_dim)
        self.attend = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        nn.init.xavier_uniform_(self.attend)

    def apply_edge(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """Scores [num_edges, H] and values [num_edges, H, D]."""
        value = self.per_head(self.of_src(edge.src))
        mixed = value + self.per_head(self.of_dst(edge.dst))
        score = (F.leaky_relu(mixed, self.negative_slope) * self.attend).sum(-1)
        return score, self.dropped(value, score)


class TransformerConv(_Attention):
    r"""Attention by the scaled product of a query at the destination and a key at the source, plus a map of the vertex.

    .. math::
        s_{vu} = \frac{(W_q h_u)^T W_k h_v}{\sqrt{D}}, \qquad
        h_u' = \sum_{v \to u} \mathrm{softmax}_v(s_{vu})\, W_v h_v + W_o h_u

    D is ``head_dim``; every map has a bias. The result is [num_dst, num_heads * head_dim], or [num_dst, head_dim] where heads are
    averaged. The same as PyG's ``TransformerConv``.

    Args:
        in_dim: features per vertex.
        head_dim: outputs per vertex and head.
        num_heads: number of heads.
        concat: concatenate the heads' outputs; false averages them.
        attention_dropout: probability of dropping a coefficient.
    References:
        Shi et al., Masked Label Prediction: Unified Message Passing Model for Semi-Supervised Classification, IJCAI 2021, Eq. 3-5.
        Without edge features and gated residuals.
    """

    def _make_maps(self, in_dim: int) -> None:
        self.query, self.key, self.value = (glorot_linear(in_dim, self.num_heads * self.head_dim) for _ in range(3))
        self.own = glorot_linear(in_dim, self.out_dim)

    def apply_edge(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """Scores [num_edges, H] and values [num_edges, H, D]."""
        query = self.per_head(self.query(edge.dst))
        key, value = (self.per_head(rows(edge.src)) for rows in (self.key, self.value))
        score = (query * key).sum(-1) / self.head_dim**0.5
        return score, self.dropped(value, score)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.joined(accum) + self.own(vertex)


def attention_weights(layer: SagaLayer, topology: Topology, x: Tensor | dict[str, Tensor]) -> Tensor:
    """Compute the coefficients by which a layer with the softmax accumulator weighs its messages, before dropout.

    The edges are taken in slabs of whole destinations: rows of vertices are in memory for a slab alone, scores for all edges.

    Args:
        layer: a layer of the zoo or of one's own, whose ``apply_edge`` returns scores and values.
        topology: the prepared topology, with the edge data that the layer reads.
        x: rows of the sources as the layer takes them, [num_src, ...], or several tensors by name.
    Returns:
        [num_edges] or [num_edges, H], in the topology's order of edges, without gradient. Over the in-edges of a destination
        they sum to 1.
    Raises:
        LayerError: the layer's accumulator is not softmax.
        InputError: ``x`` is sparse, or does not fit the topology.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1, 2]), dst=torch.tensor([1, 1, 2]), num_src=3)
        >>> weights = attention_weights(GATv2(4, 8, num_heads=2), topology, torch.ones(3, 4))
        >>> weights[:, 0].tolist()
        [0.5, 0.5, 1.0]
    """
    if layer.accumulator != "softmax":
        raise LayerError(
            f"only softmax weighs messages by attention: accumulator = {layer.accumulator!r} (in layer {type(layer).__name__})",
            hint="Ask a layer whose accumulator is 'softmax', such as GAT.",
        )
    for each in named(x).values():
        if is_sparse(each):
            raise InputError(
                f"attention weights are computed of dense rows: x is sparse (in layer {type(layer).__name__})",
                hint="Pass x.to_dense().",
            )
        check_input(topology, each, f"attention_weights of layer {type(layer).__name__}")
    found = []
    with torch.no_grad():
        for rows, edges in slabs(topology.indptr, _SLAB_EDGES):
            dst = destinations(topology, rows, edges)
            score, _ = layer.apply_edge(
                Edge(
                    src={name: each[topology.indices[edges]] for name, each in named(x).items()},
                    dst={name: each[dst] for name, each in named(x).items()},
                    data={key: topology.edge_data[name][edges] for key, name in layer.edge_data_names().items()},
                    reader=f"layer {type(layer).__name__}",
                )
            )
            found.append(score)
        scores = torch.cat(found) if found else torch.empty(0, device=topology.device)
        largest, total = (
            each.index_select(0, topology.edge_dst()) for each in gather_denominator(topology, scores)
        )
        return ((scores - largest).exp() / total).to(scores.dtype)


_SLAB_EDGES = 1 << 16
"Number of edges whose rows of vertices are in memory together."


def _per_head(attend: Tensor) -> Tensor:
    """[H, D] as a linear map [H, H * D] that multiplies each head's values by its own attention."""
    return torch.diag_embed(attend.T).permute(1, 2, 0).flatten(1)
