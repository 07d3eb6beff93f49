"""Preparation: a graph as a model reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import nn

from sagann.errors import InputError, LayerError
from sagann.graph import Graph, Topology
from sagann.graph.checks import slices
from sagann.graph.feature_store import feature_store, read_slice
from sagann.graph.large_arrays import empty_array, made_by
from sagann.graph.rows import csr_tensor, is_sparse, made_dense
from sagann.runtime.team import SOLO, Team
from sagann.saga.shared_lock import MODELS

if TYPE_CHECKING:
    from sagann.runtime.workers import WorkerPart
    from sagann.train.streamed import Streaming


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedGraph:
    """A checked graph on the device, as the model reads it. Made by :meth:`sagann.train.Predictor.prepare`."""

    graph: Graph
    "The graph that the layers walk. Where workers divide it, its labels and splits alone are as prepared."
    opened: Topology
    "The edges before the model has prepared them, such as without loops that it has added."
    part: WorkerPart | None = None
    "The worker's part of the prepared graph, which the layers walk instead; None for the whole graph."

    @property
    def walked(self) -> Graph | WorkerPart:
        """What the layers walk: the whole graph, or the worker's part."""
        return self.part or self.graph

    @property
    def num_edges(self) -> int:
        """Number of edges of the whole prepared graph."""
        return self.walked.num_edges

    @property
    def vertices(self) -> slice:
        """Ids of the vertices whose rows this process computes."""
        return slice(0, self.graph.num_vertices) if self.part is None else self.part.vertices

    @property
    def team(self) -> Team:
        """The workers that divide the graph."""
        return SOLO if self.part is None else self.part.workers


def prepared_by(model: nn.Module, graph: Graph) -> Graph:
    """The graph as ``model.prepare`` returns it; with dense features, unless the model takes sparse ones."""
    prepare = getattr(model, "prepare", None)
    prepared = graph if prepare is None else prepare(graph)
    if not isinstance(prepared, Graph):
        raise LayerError(
            f"prepare must return a graph: a {type(prepared).__name__} (in {type(model).__name__}.prepare)",
            hint="Return the prepared sagann.graph.Graph.",
        )
    features = prepared.features
    if not is_sparse(features) or takes_sparse_features(model):
        return prepared
    hint = "Set takes_sparse_features = True in its class if it hands them to SAGA layers or LinearEncoder."
    return replace(prepared, features=made_dense(features, f"The model {type(model).__name__}", hint))


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
    store = feature_store(features.values() if is_sparse(features) else features)
    cast = empty_array((store.num_rows, *store.row_shape), dtype, graph.topology.device)
    infinite = False
    for part in slices(store.num_rows, math.prod(store.row_shape)):
        rows = read_slice(store, part.start, part.stop).to(dtype)
        infinite = infinite or bool(rows.isinf().any())
        cast[part] = rows
    if infinite:
        raise InputError(
            f"a feature is too large for the numbers that the model computes in: {features.dtype} features, "
            f"{dtype} ends at {torch.finfo(dtype).max:.3g} (in graph '{graph.name}')",
            hint="Scale the features, for instance to mean 0 and deviation 1.",
        )
    if is_sparse(features):
        # .to() would check the offsets and ids again.
        cast = csr_tensor(features.crow_indices(), features.col_indices(), cast, num_columns=graph.num_features)
    return replace(graph, features=cast)


_EVALUATIONS: WeakKeyDictionary[nn.Module, list[dict[nn.Module, bool]]] = WeakKeyDictionary()
"For each model, one entry per running evaluation: the modes of the model's modules before the first evaluation."


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the block, the model evaluates and records no gradient. Of several threads, the last one to end restores the modes."""
    # Not while another thread traces the model.
    with MODELS.changing():
        running = _EVALUATIONS.setdefault(model, [])
        running.append(running[0] if running else {module: module.training for module in model.modules()})
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        with MODELS.changing():
            modes = running.pop()
            if not running:
                for module, mode in modes.items():
                    module.training = mode


@contextmanager
def large_arrays(streaming: Streaming | None) -> Iterator[None]:
    """Inside the block, large arrays of a graph that is opened or prepared lie on the spill folder's disk, if there is one."""
    if streaming is None or streaming.spill is None:
        yield
        return
    from sagann.runtime.blocks.spill import Scratch

    with made_by(Scratch(streaming.spill)):
        yield
