"""A lower bound of the memory of a run, known before the model is built: a run that needs more than there is can be refused."""

from __future__ import annotations

from dataclasses import replace

import torch

from sagann.graph import Graph
from sagann.graph.rows import is_sparse
from sagann.graph.subgraph import subgraph
from sagann.nn import MODELS, ModelConfig, build_model
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga.engine import NaiveEngine, current_engine
from sagann.saga.hops import count_hops
from sagann.train.metrics import most_measured
from sagann.train.preparation import prepared_by

_FLOAT_BYTES = 4
# A decision and its label, as int64 each.
_DECISION_BYTES = 16
# Enough rows for a layer to be traced.
_FEW_VERTICES = 16


def least_bytes(config: ModelConfig, graph: Graph, *, is_streamed: bool) -> int:
    """Bytes that a run on the CPU takes at least, with the current engine.

    Args:
        config: the model. Of a user's own model only the output is counted.
        graph: the graph, not yet prepared.
        is_streamed: whether a budget is stated. Without a budget, a model that can be streamed is streamed if need be.
    """
    output = _output_bytes(graph, is_streamed=is_streamed)
    if config.model not in MODELS:
        return output
    # Nothing is allocated on this device.
    with torch.device("meta"):
        model = build_model(config, graph)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    engine = current_engine()
    streams = isinstance(engine, CompiledEngine) and not engine.lean and graph.features is not None
    boundaries = count_hops(model) - 1
    rows = 0 if streams else boundaries * graph.num_vertices
    if isinstance(engine, NaiveEngine) and boundaries:
        rows += graph.num_edges
    # Gradients of weights exist when those of the rows are gone.
    passes = max(output + rows * config.hidden * _FLOAT_BYTES, weights)
    return weights + passes + _dense_bytes(config, graph)


def _output_bytes(graph: Graph, *, is_streamed: bool) -> int:
    """Logits of all vertices. A streamed run has them in files, but counts decisions of several labels a split at a time."""
    if not is_streamed:
        return graph.num_vertices * graph.num_classes * _FLOAT_BYTES
    return most_measured(graph) * graph.num_classes * _DECISION_BYTES if graph.multi_label else 0


def _dense_bytes(config: ModelConfig, graph: Graph) -> int:
    """Dense rows of sparse features, if the model's preparation makes them: a narrow model on a few vertices tells."""
    if not is_sparse(graph.features):
        return 0
    few = subgraph(graph, torch.arange(min(_FEW_VERTICES, graph.num_vertices)))
    narrow = build_model(replace(config, layers=2, hidden=1, heads=1, out_heads=1), few)
    prepared = prepared_by(narrow, few).features
    is_dense = prepared is not None and not is_sparse(prepared)
    return graph.num_vertices * graph.num_features * _FLOAT_BYTES if is_dense else 0
