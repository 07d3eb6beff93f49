"""GNN: a stack of SAGA layers, with dropout, normalisation and activation between them; and encoders of its features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from sagann.errors import InputError, require_type
from sagann.graph import Graph, Topology
from sagann.graph.rows import dense_rows, is_sparse, made_dense
from sagann.kernels.feature_rows import FeatureRows
from sagann.kernels.row_dropout import dropout, is_plain
from sagann.nn.layers import glorot_linear, require_counts, require_share, require_widths
from sagann.saga import SagaLayer
from sagann.saga.side_effects import has_hooks


class LinearEncoder(nn.Module):
    """A linear map of dense or ``torch.sparse_csr`` features: [num_vertices, in_dim] -> [num_vertices, out_dim].

    Sparse rows cost their non-zeros only.
    """

    def __init__(self, in_dim: int, out_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        require_widths(self, in_dim=in_dim, out_dim=out_dim)
        self.linear = glorot_linear(in_dim, out_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.layout != torch.sparse_csr:
            return self.linear(x)
        return FeatureRows(x).linear(self.linear.weight, self.linear.bias)


class EmbeddingEncoder(nn.Module):
    """A learned row per vertex, [num_vertices, out_dim], for graphs without features. The rows are of no use on another graph."""

    def __init__(self, num_vertices: int, out_dim: int) -> None:
        super().__init__()
        require_widths(self, num_vertices=num_vertices, out_dim=out_dim)
        self.rows = nn.Parameter(torch.empty(num_vertices, out_dim))
        nn.init.xavier_uniform_(self.rows)

    def forward(self, x: Tensor | None) -> Tensor:
        """The learned rows; ``x`` must be None, or of width 0."""
        if x is not None and x.shape[1]:
            raise InputError(
                f"a model with an embedding per vertex takes no features: features {list(x.shape)} (in "
                "EmbeddingEncoder)",
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
        require_counts(self, of="steps", hint="Leave steps out to walk the layers once.", steps=steps)
        require_share(self, dropout=dropout)
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
