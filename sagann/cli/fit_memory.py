"""A run whose weights and outputs alone do not fit memory is refused before it starts: a wrong label makes billions of classes."""

from __future__ import annotations

import torch

from sagann.config import RunConfig
from sagann.free_space import require_memory
from sagann.graph import Graph
from sagann.nn import MODELS, ModelConfig, build_model
from sagann.train.metrics import DECISION_BYTES, most_measured
from sagann.train.resources import resolve_device

_FLOAT_BYTES = 4


def check_memory(settings: RunConfig, graph: Graph) -> None:
    """Refuse a run whose least memory is more than there is. CUDA devices refuse by themselves."""
    if resolve_device(settings.train.device).type != "cpu":
        return
    model, is_streamed = settings.model, settings.train.memory is not None
    answers = graph.answers
    learned = f"{answers.num_outputs} {'classes' if answers.targets is None else 'targets'}"
    streamed = "" if is_streamed or settings.engine != "compiled" else "--memory, which streams the run, "
    require_memory(
        least_bytes(model, graph, is_streamed=is_streamed),
        where=f"{model.model}, {model.layers} layers, hidden {model.hidden}, for {'links' if answers.unit == 'link' else learned} on "
        f"{graph.num_vertices} vertices and {graph.num_edges} edges",
        hint=f"If there are too many classes, number them from 0 without gaps. Else use {streamed}a smaller --hidden, fewer --layers, or more memory.",
    )


def least_bytes(config: ModelConfig, graph: Graph, *, is_streamed: bool) -> int:
    """Bytes that a run on the CPU takes at least: weights, and beside them their gradients or the outputs of all vertices.

    Of a user's own model only the outputs are counted, and of a task on whole graphs, which are computed in batches, only the weights.
    """
    outputs, unit = 0, graph.answers.unit
    if is_streamed and graph.multi_label:
        # Logits lie in files, but decisions of several labels are counted a split at a time.
        outputs = most_measured(graph.vertices) * graph.num_classes * DECISION_BYTES
    elif not is_streamed and unit != "graph":
        outputs = graph.num_vertices * (config.hidden if unit == "link" else graph.num_outputs) * _FLOAT_BYTES
    if config.model not in MODELS:
        return outputs
    # Nothing is allocated on this device.
    with torch.device("meta"):
        weights = sum(parameter.nbytes for parameter in build_model(config, graph).parameters())
    return weights + max(weights, outputs)
