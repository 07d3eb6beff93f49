"""Graphs as a model reads them, and runners: a model over such a graph, whole and in memory, over a worker's part, or graph by graph.

Whoever trains or evaluates asks a runner for rows and losses, and never how it runs. :mod:`sagann.train.streamed` runs a model by intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError
from sagann.graph import Graph, Topology
from sagann.graph.checks import slices
from sagann.graph.feature_store import Features, feature_store, read_slice
from sagann.graph.large_arrays import empty_array, made_by
from sagann.graph.rows import csr_tensor, is_sparse, made_dense
from sagann.kernels.row_dropout import rows_of
from sagann.nn.model_call import class_of
from sagann.runtime.team import SOLO, Team
from sagann.saga.batch_norms import naming_few_rows
from sagann.saga.layer import count_hops
from sagann.saga.shared_lock import MODELS
from sagann.train.heads import Batch, Head
from sagann.train.run_folder import PROFILE_FILE
from sagann.train.trainable import require_one_graph

if TYPE_CHECKING:
    from sagann.runtime.loading import GraphBatch
    from sagann.runtime.recorder import Recorder
    from sagann.runtime.streaming.epoch import LossOf
    from sagann.runtime.workers import PartEdges, PartRows, WorkerPart
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
    edges: PartEdges | None = None
    "The in-edges of all vertices for mini-batches, where workers divide the graph."
    rows: PartRows | None = None
    "The features of all vertices for mini-batches, where workers divide the graph."
    team: Team = SOLO
    "The workers that divide the graph, or its graphs."

    @property
    def walked(self) -> Graph | WorkerPart:
        """What the layers walk: the whole graph, or the worker's part."""
        return self.part or self.graph

    @property
    def sampled(self) -> Graph:
        """The graph that mini-batches are made of, on the processor; samplers take its edges from ``edges`` where workers divide it."""
        return self.graph.to("cpu") if self.rows is None else replace(self.graph, features=self.rows)

    @property
    def num_edges(self) -> int:
        """Number of edges of the whole prepared graph."""
        return self.walked.num_edges

    @property
    def vertices(self) -> slice:
        """Ids of the vertices whose rows this process computes."""
        return slice(0, self.graph.num_vertices) if self.part is None else self.part.vertices


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


# Vertices of a batch of graphs that is evaluated.
_VERTICES_AT_ONCE = 1 << 16


class Runner:
    """A model over a whole graph in memory. Subclasses run it otherwise. With ``for_first``, the first worker alone gets rows of all vertices."""

    version = 0
    "Of what an epoch reads besides graph and model: a recording ends where it changes."

    def __init__(
        self,
        model: nn.Module,
        prepared: PreparedGraph,
        head: Head,
        *,
        device: torch.device,
        streaming: Streaming | None = None,
        for_first: bool = False,
    ) -> None:
        self.model, self.prepared, self.device, self.streaming = model, prepared, device, streaming
        self.num_hops, self.team = count_hops(model), prepared.team
        self._head, self._for_first = head, for_first

    def rows(self) -> Tensor:
        """The model's rows of this process's own vertices (or graphs) in its current mode, with their gradient."""
        own, walked = self.prepared.vertices, self.prepared.walked
        return self._head.check(self._run(self.model), own.stop - own.start, walked.topology.device)

    def rows_on_device(self) -> Tensor:
        """The rows of all vertices, where they are computed; the host does not wait for them."""
        return self.rows()

    def why_queued(self) -> str | None:
        """Why no epoch can be recorded, as far as that is known before one is trained; None where it is tried."""
        return None

    def most_reserved_bytes(self) -> float:
        """Most bytes of the device that recordings may keep for themselves."""
        return math.inf

    def rows_of(self, model: nn.Module) -> Tensor:
        """Own rows of another model, without a gradient, on the CPU."""
        return self._run(model).to("cpu", copy=True)

    def all_outputs(self) -> Tensor:
        """The rows of all vertices (or graphs), without a gradient: at the workers that get results, else without rows."""
        return self._gathered(self.rows(), self.bounds, "gathering the model's output")

    def embedding(self, model: nn.Module) -> Tensor:
        """The rows of all vertices that another model gives, as :meth:`all_outputs`."""
        return self._gathered(self.rows_of(model), self.vertex_bounds, "gathering embeddings")

    def _gathered(self, own: Tensor, bounds: Sequence[int], doing: str) -> Tensor:
        if self.team.size == 1:
            return own
        # A device may be too small for the rows of all vertices.
        own = own.cpu()
        with large_arrays(self.streaming):
            return self.team.rows_at(own, bounds, doing, first_only=self._for_first)

    @property
    def bounds(self) -> Sequence[int]:
        """Bounds of the rows of :meth:`rows` that are each worker's."""
        return self.vertex_bounds

    @property
    def vertex_bounds(self) -> Sequence[int]:
        """Bounds of the vertices of each worker."""
        part = self.prepared.part
        return (0, self.prepared.graph.num_vertices) if part is None else part.bounds

    def loss(self, loss_of: LossOf, *, timeline: Recorder | None = None) -> Tensor:
        """This process's part of a loss, with its gradient: the sum of what ``loss_of`` gives for ranges of its own vertices, counted from 0.

        ``timeline`` records a streamed epoch.
        """
        rows = self.rows()
        loss = loss_of(rows, slice(0, len(rows)))
        # A worker without training vertices takes part in the backward pass of the others.
        return loss if self.team.size == 1 else loss + rows[:0].sum()

    def complete(self, loss: Tensor, num_edges: int) -> tuple[Tensor, int]:
        """Add what other workers have found: gradients of the parameters, loss and number of edges. All have the same random numbers then."""
        if self.team.size == 1:
            return loss, num_edges
        numbers = torch.tensor([float(loss), num_edges], dtype=torch.float64)
        total_loss, total_edges = self.team.add_gradients(list(self.model.parameters()), numbers).tolist()
        return loss.new_tensor(total_loss), int(total_edges)

    def try_out(self) -> None:
        """Make lazy parameters, and find errors of the model, the budget and the disk before anything is trained."""
        with evaluating(self.model):
            self._head.try_rows(self.rows())

    def write_profile(self, folder: Path, measured: Recorder, say: Callable[[str], None]) -> None:
        """Write a trace of an epoch into the run folder."""
        from sagann.runtime.forecasting.timeline_files import write_trace

        write_trace(folder / PROFILE_FILE, {"measured": measured})

    def require_row_wise(self) -> None:
        """Refuse a model that, in its current mode, mixes vertices between its layers, where it sees some of them at a time."""

    def close(self) -> None:
        """Remove spilled blocks. The next call makes them again."""

    def _run(self, model: nn.Module) -> Tensor:
        """The result of a model for the own vertices."""
        graph = self.prepared.graph
        takes_batch = graph.graph_ptr is not None and getattr(self.model, "reads_batch", False)
        more = [graph.graph_ptr] if takes_batch else []
        with unchanged(self.model, graph.features):
            return model(graph.hops(self.num_hops), graph.features, *more)


class OnPart(Runner):
    """A model over a worker's part in memory."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        assert self.prepared.part is not None
        self._part = self.prepared.part
        self._row_wise_modes: set[bool] = set()
        "Modes, training or not, in which the model is known to treat vertices independently."

    def try_out(self) -> None:
        super().try_out()
        self.model.train()
        self.require_row_wise()

    def require_row_wise(self) -> None:
        require_one_graph(self.model, self.prepared.graph)
        if self.model.training not in self._row_wise_modes:
            from sagann.compiler import CompilerOptions
            from sagann.compiler.capture import capture

            # Only errors of the model are wanted: nothing is optimised, and sparse features pass for dense ones.
            part, features = self._part, self._part.features
            options = CompilerOptions(hoist=False, split_concat=False, commute=False, invariant=False, fuse=False)
            x = torch.empty(0, features.shape[1], dtype=features.dtype, device=features.device)
            capture(self.model, part.hops(self.num_hops), x, options=options)
            self._row_wise_modes.add(self.model.training)

    def _run(self, model: nn.Module) -> Tensor:
        from sagann.runtime.workers import batch_norms_over_all

        part = self._part
        with part.computing(), batch_norms_over_all(model, part.workers), unchanged(self.model, part.features):
            return model(part.hops(self.num_hops), part.features)


class ByGraphs(Runner):
    """A model of whole graphs, in batches, each of which is cut from memory, or from mapped files, when its turn comes."""

    @property
    def bounds(self) -> Sequence[int]:
        return self.team.bounds_of(self.prepared.graph.num_graphs)

    @property
    def vertex_bounds(self) -> Sequence[int]:
        graph_ptr = self.prepared.graph.graph_ptr
        assert graph_ptr is not None
        bounds: list[int] = graph_ptr[list(self.bounds)].tolist()
        return bounds

    def rows(self) -> Tensor:
        return torch.cat([rows_of_batch(self.model, self._head, batch) for batch in self._batches()])

    def try_out(self) -> None:
        with evaluating(self.model):
            rows_of_batch(self.model, self._head, next(self._batches()))

    def rows_of(self, model: nn.Module) -> Tensor:
        # Pooling pads the rows of a batch with more graphs than vertices.
        found = [_on_batch(model, self._head, each)[: each.num_vertices] for each in self._batches()]
        return torch.cat(found).cpu()

    def _batches(self) -> Iterator[GraphBatch]:
        """This process's graphs in order, in batches on the device; one batch where it has none."""
        from sagann.runtime.loading import GraphBatches

        graph = self.prepared.graph
        own = torch.arange(graph.num_graphs)[self.team.share_of(graph.num_graphs)]
        batch_size = max(1, _VERTICES_AT_ONCE * graph.num_graphs // max(1, graph.num_vertices))
        batches = GraphBatches(graph, batch_size=batch_size, graphs=None, shuffle=False, ahead=0)
        for graphs in own.split(batch_size):
            yield batches.load(graphs).to(self.device)


def rows_of_batch(model: nn.Module, head: Head, batch: Batch) -> Tensor:
    """A model's rows of a batch's seeds, or graphs, in its current mode, with their gradient."""
    call = head.call(batch)
    return head.check(_on_batch(model, head, batch), call.num_rows, call.device)


def _on_batch(model: nn.Module, head: Head, batch: Batch) -> Tensor:
    call = head.call(batch)
    with rows_of(call.ids), unchanged(head.model, batch.features):
        return model(*call.arguments)


@contextmanager
def unchanged(model: nn.Module, features: Features | None) -> Iterator[None]:
    """While a model runs: one that overwrites its features is a LayerError, and so is a BatchNorm that is trained on one row."""
    # A tensor made in inference mode counts no versions, and refuses to be overwritten outside of that mode.
    counted = features if isinstance(features, Tensor) and not features.is_inference() else None
    before = 0 if counted is None else counted._version
    with naming_few_rows(f"model {class_of(model).__name__}"):
        yield
    if counted is not None and counted._version != before:
        raise LayerError(
            "the model overwrites its input: the features were changed in place "
            f"{counted._version - before} times in one pass (in model {class_of(model).__name__})",
            hint="Compute a new tensor (x = x * 2, not x *= 2 or x.mul_(2)), or work on x.clone(); then load the features again.",
        )
