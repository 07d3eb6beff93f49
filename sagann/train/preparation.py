"""Preparation: a graph as a model reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from sagann.errors import InputError, LayerError
from sagann.graph import Graph
from sagann.graph.checks import CHECKED_AT_ONCE
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import csr_tensor, made_dense


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedGraph:
    """A checked graph on the device, as the model reads it. Made by :meth:`sagann.train.Predictor.prepare`."""

    graph: Graph
    "The graph that the layers walk."


def prepared_by(model: nn.Module, graph: Graph) -> Graph:
    """The graph as ``model.prepare`` returns it; with dense features, unless the model takes sparse ones."""
    prepare = getattr(model, "prepare", None)
    prepared = graph if prepare is None else prepare(graph)
    if not isinstance(prepared, Graph):
        raise LayerError(
            "prepare must return a graph",
            value=f"a {type(prepared).__name__}",
            where=f"{type(model).__name__}.prepare",
            fix="Return the prepared sagann.graph.Graph.",
        )
    features = prepared.features
    if features is None or features.layout != torch.sparse_csr or takes_sparse_features(model):
        return prepared
    fix = "Set takes_sparse_features = True in its class if it hands them to SAGA layers or LinearEncoder."
    return replace(prepared, features=made_dense(features, f"The model {type(model).__name__}", fix))


def takes_sparse_features(model: nn.Module) -> bool:
    """Whether the model declares that it reads ``torch.sparse_csr`` features."""
    return getattr(model, "takes_sparse_features", False)


def parameter_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of the model's first floating-point parameter; float32 where it has none."""
    dtypes = (parameter.dtype for parameter in model.parameters())
    return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.float32)


def features_as(graph: Graph, dtype: torch.dtype) -> Graph:
    """The graph with its dense or sparse features as ``dtype``. A feature too large for ``dtype`` is an InputError."""
    features = graph.features
    if features is None or features.dtype == dtype:
        return graph
    is_sparse = features.layout == torch.sparse_csr
    values = features.values() if is_sparse else features
    cast = empty_array(values.shape, dtype, values.device)
    infinite = False
    step = max(1, CHECKED_AT_ONCE // max(1, values[:1].numel()))
    for first in range(0, len(values), step):
        rows = values[first : first + step].to(dtype)
        infinite = infinite or bool(rows.isinf().any())
        cast[first : first + step] = rows
    if infinite:
        raise InputError(
            "a feature is too large for the numbers that the model computes in",
            value=f"{features.dtype} features, {dtype} ends at {torch.finfo(dtype).max:.3g}",
            where=f"graph '{graph.name}'",
            fix="Scale the features, for instance to mean 0 and deviation 1.",
        )
    if is_sparse:
        # .to() would check the offsets and ids again.
        cast = csr_tensor(features.crow_indices(), features.col_indices(), cast, num_columns=graph.num_features)
    return replace(graph, features=cast)
