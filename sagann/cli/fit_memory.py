"""A run that cannot fit memory is refused before it starts: a lower bound of its memory is known before the model is built."""

from __future__ import annotations

from dataclasses import replace

import torch

from sagann.cli.run_settings import new_engine
from sagann.config import RunConfig
from sagann.free_space import require_memory
from sagann.graph import Graph
from sagann.graph.rows import is_sparse
from sagann.graph.subgraph import subgraph
from sagann.nn import MODELS, ModelConfig, build_model
from sagann.nn.zoo import with_outputs
from sagann.saga.engine import NaiveEngine, current_engine, using_engine
from sagann.saga.layer import count_hops
from sagann.train.automatic import is_streamed_by_engine
from sagann.train.metrics import DECISION_BYTES, most_measured
from sagann.train.preparation import prepared_by
from sagann.train.resources import resolve_device

_FLOAT_BYTES = 4
# Enough rows for a layer to be traced.
_FEW_VERTICES = 16


def check_memory(settings: RunConfig, graph: Graph) -> None:
    """Refuse a run whose least memory is more than there is. CUDA devices refuse by themselves."""
    if resolve_device(settings.train.device).type != "cpu":
        return
    model, is_streamed = settings.model, settings.train.memory is not None
    with using_engine(new_engine(settings)):
        needed_bytes = least_bytes(model, graph, is_streamed=is_streamed)
    answers = graph.answers
    learned = f"{answers.num_outputs} {'classes' if answers.targets is None else 'targets'}"
    ways = ["a smaller --hidden", "fewer --layers", "--encoder linear for sparse features", "more memory"]
    if settings.engine != "compiled":
        ways.insert(0, "--engine compiled")
    elif not is_streamed:
        ways.insert(0, "--memory, which streams the run")
    require_memory(
        needed_bytes,
        where=f"{model.model}, {model.layers} layers, hidden {model.hidden}, for {'links' if answers.unit == 'link' else learned} on "
        f"{graph.num_vertices} vertices and {graph.num_edges} edges",
        hint=f"If there are too many classes, number them from 0 without gaps. Else use {', '.join(ways[:-1])}, or {ways[-1]}.",
    )


def least_bytes(config: ModelConfig, graph: Graph, *, is_streamed: bool) -> int:
    """Bytes that a run on the CPU takes at least, with the current engine, for a graph that is not prepared yet.

    Of a user's own model only the output is counted; of a task on whole graphs, which are computed in batches, only the weights. ``is_streamed`` says whether a budget is stated; without a budget, a
    model that can be streamed is streamed if need be.
    """
    output = _output_bytes(config, graph, is_streamed=is_streamed)
    if config.model not in MODELS:
        return output
    # Nothing is allocated on this device.
    with torch.device("meta"):
        model = build_model(config, graph)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    if graph.answers.unit == "graph":
        return weights + _dense_bytes(config, graph)
    streams = is_streamed_by_engine() and graph.features is not None
    boundaries = count_hops(model) - 1
    rows = 0 if streams else boundaries * graph.num_vertices
    if isinstance(current_engine(), NaiveEngine) and boundaries:
        rows += graph.num_edges
    # Gradients of weights exist when those of the rows are gone.
    passes = max(output + rows * config.hidden * _FLOAT_BYTES, weights)
    return weights + passes + _dense_bytes(config, graph)


def _output_bytes(config: ModelConfig, graph: Graph, *, is_streamed: bool) -> int:
    """Logits of all vertices. A streamed run has them in files, but counts decisions of several labels a split at a time."""
    if graph.answers.unit == "link":
        return 0 if is_streamed else graph.num_vertices * config.hidden * _FLOAT_BYTES
    if not is_streamed:
        return graph.num_vertices * graph.num_outputs * _FLOAT_BYTES
    return most_measured(graph.vertices) * graph.num_classes * DECISION_BYTES if graph.multi_label else 0


def _dense_bytes(config: ModelConfig, graph: Graph) -> int:
    """Dense rows of sparse features, if the model's preparation makes them: a narrow model on a few vertices tells."""
    if not is_sparse(graph.features):
        return 0
    few = subgraph(with_outputs(graph, 1), torch.arange(min(_FEW_VERTICES, graph.num_vertices)))
    narrow = build_model(replace(config, layers=2, hidden=1, heads=1), few)
    prepared = prepared_by(narrow, few).features
    is_dense = prepared is not None and not is_sparse(prepared)
    return graph.num_vertices * graph.num_features * _FLOAT_BYTES if is_dense else 0
