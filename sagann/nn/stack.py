"""Models of vertices: stacks of SAGA layers (GNN), with encoders of their features; and SGC and APPNP (Propagated)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from sagann.errors import InputError, require_type
from sagann.graph import Graph, Topology
from sagann.graph.rows import dense_rows, is_sparse, made_dense
from sagann.kernels.feature_rows import FeatureRows
from sagann.kernels.row_dropout import dropout, is_plain
from sagann.nn.layers import GCN, glorot_linear, require_arguments
from sagann.saga import Edge, SagaLayer
from sagann.saga.side_effects import has_hooks


class LinearEncoder(nn.Module):
    """A linear map of dense or ``torch.sparse_csr`` features: [num_vertices, in_dim] -> [num_vertices, out_dim].

    Sparse rows cost their non-zeros only.
    """

    def __init__(self, in_dim: int, out_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        require_arguments(self, in_dim=in_dim, out_dim=out_dim)
        self.linear = glorot_linear(in_dim, out_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.layout != torch.sparse_csr:
            return self.linear(x)
        return FeatureRows(x).linear(self.linear.weight, self.linear.bias)


class EmbeddingEncoder(nn.Module):
    """A learned row per vertex, [num_vertices, out_dim], for graphs without features. The rows are of no use on another graph."""

    def __init__(self, num_vertices: int, out_dim: int) -> None:
        super().__init__()
        require_arguments(self, num_vertices=num_vertices, out_dim=out_dim)
        self.rows = nn.Parameter(torch.empty(num_vertices, out_dim))
        nn.init.xavier_uniform_(self.rows)

    def forward(self, x: Tensor | None) -> Tensor:
        """The learned rows; ``x`` must be None, or of width 0."""
        if x is not None and x.shape[1]:
            raise InputError(
                f"a model with an embedding per vertex takes no features: features {list(x.shape)} (in EmbeddingEncoder)",
                hint="Train with encoder = 'linear' or 'none' where the graph has features.",
            )
        return self.rows


class GNN(nn.Module):
    """A stack of layers: an encoder; then for each layer dropout, the layer, normalisation and activation; then a decoder.

    ``model(hops, x)`` walks one topology per layer. ``x`` is [num_src, F] for the first topology, the result [num_dst,
    out_dim] for the last one. Nothing is normalised or activated after the last layer.

    Args:
        layers: the SAGA layers, in order.
        encoder: a row-wise module before the first layer, for sparse, missing or very wide features.
        decoder: a row-wise module after the last layer.
        steps: number of times that the layers are walked, with the same parameters (GG-NN).
        dropout: probability of dropping an input of a layer or of the decoder.
        norms: a normalisation of rows for each boundary between two layers, or empty; LayerNorms or BatchNorms.
        activation: applied after the encoder and between layers; None where the layers do it themselves.
    Example:
        >>> from sagann.nn import SAGE
        >>> model = GNN([SAGE(4, 8), SAGE(8, 3)], dropout=0.5)
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([1, 2]), num_src=3)
        >>> model([topology] * model.num_hops, torch.ones(3, 4)).shape
        torch.Size([3, 3])
    """

    takes_sparse_features: ClassVar[bool] = True
    "The features of a graph may be ``torch.sparse_csr``; :meth:`prepare` makes them dense where a layer needs dense rows."

    def __init__(
        self,
        layers: Sequence[SagaLayer],
        *,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        steps: int = 1,
        dropout: float = 0.0,
        norms: Sequence[nn.Module] = (),
        activation: Callable[[Tensor], Tensor] | None = torch.relu,
    ) -> None:
        super().__init__()
        require_type(layers, Iterable, where="GNN.layers", hint="Pass a list of layers.")
        require_arguments(self, steps=steps, dropout=dropout)
        self.encoder = encoder
        self.layers = nn.ModuleList(layers)
        self.decoder = decoder
        self.norms = nn.ModuleList(norms)
        self.steps = steps
        self.dropout = dropout
        self.activation = activation

    @property
    def num_hops(self) -> int:
        """Number of topologies that ``forward`` walks."""
        return len(self.layers) * self.steps

    def prepare(self, graph: Graph) -> Graph:
        """Prepare ``graph`` as the layers do, and make its features dense where the first layer reads dense rows.

        Sparse features stay sparse where the model has an encoder, and where the first layer reads its input by linear
        maps only.
        """
        kinds = {type(layer).prepare for layer in self.layers if isinstance(layer, SagaLayer)}
        if len(kinds) > 1:
            raise InputError(
                "the layers want the graph prepared in different ways: "
                f"{', '.join(sorted({type(layer).__name__ for layer in self.layers}))} (in GNN.prepare)",
                hint="Derive a class from GNN and say in its prepare(graph) what the graph needs.",
            )
        for prepare in kinds:
            graph = prepare(graph)
        features = graph.features
        if self.encoder is not None or not is_sparse(features):
            return graph
        first = self.layers[0]
        # An overriding forward may read the features by itself.
        is_own_forward = type(self).forward is GNN.forward
        if is_own_forward and isinstance(first, SagaLayer) and first.maps_features(graph.topology, features):
            return graph
        hint = "Put an encoder before it (encoder = 'linear'), or begin its functions with a linear map."
        return replace(graph, features=made_dense(features, f"{type(first).__name__}, the first layer,", hint))

    def forward(self, hops: Sequence[Topology], x: Tensor | None) -> Tensor:
        hint = "Pass graph.hops(model.num_hops)."
        require_type(hops, Sequence, where="GNN.forward", hint=hint)
        if len(hops) != self.num_hops:
            raise InputError(
                f"hops and layers differ in number: {len(hops)} hops, {self.num_hops} layers (in GNN.forward)",
                hint=hint,
            )
        if self.encoder is not None:
            x = self._activated(self.encoder(x))
        if x is None:
            raise InputError(
                "the model needs vertex features: features are None (in GNN.forward)",
                hint="Give the graph features, or the model an EmbeddingEncoder (encoder = 'embedding').",
            )
        for hop, topology in enumerate(hops):
            if hop:
                x = self._activated(self.norms[(hop - 1) % len(self.norms)](x) if self.norms else x)
            layer = self.layers[hop % len(self.layers)]
            x = layer(topology, self._dropped(self._rows(layer, x)))
        if self.decoder is not None:
            x = self.decoder(self._dropped(x))
        return x

    def _rows(self, layer: nn.Module, x: Tensor) -> Tensor | FeatureRows:
        """The input of a layer: FeatureRows for features without gradient, which dropout and linear maps need not copy."""
        if not is_plain(x):
            return x
        is_dropped = self.training and self.dropout > 0 and x.ndim == 2 and x.is_floating_point()
        # A hook needs a tensor.
        takes_rows = type(layer).forward is SagaLayer.forward and not has_hooks([layer])
        if takes_rows and not x.requires_grad and (is_dropped or is_sparse(x)):
            return FeatureRows(x)
        return dense_rows(x) if is_sparse(x) else x

    def _dropped(self, x: Tensor | FeatureRows) -> Tensor | FeatureRows:
        return dropout(x, self.dropout) if self.training and self.dropout > 0 else x

    def _activated(self, x: Tensor) -> Tensor:
        return x if self.activation is None else self.activation(x)


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
        require_arguments(self, teleport=teleport)
        self.teleport = teleport

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src["state"] * edge.data.unsqueeze(-1)

    def apply_vertex(self, vertex: Mapping[str, Tensor], accum: Tensor) -> Tensor:
        return (1 - self.teleport) * accum + self.teleport * vertex["start"] if self.teleport else accum


class Propagated(nn.Module):
    """A model of rows, whose results are propagated over several hops.

    ``model(hops, x)`` walks one topology per hop. ``x`` is [num_src, F] for the first topology, the result [num_dst, out_dim] for the
    last one. In SGC, a linear map comes first, because it commutes with the propagation and makes rows narrower, then hops without teleport,
    and a bias. In APPNP, a network of two maps, then hops with teleport.

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
