"""Predictor: a trained model on a graph, its own or a new one: evaluate, predict, embed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sagann.byte_size import format_bytes
from sagann.errors import InputError, LayerError, require_type
from sagann.free_space import free_disk_bytes
from sagann.graph import SPLIT_NAMES, Graph, validate_graph
from sagann.graph.feature_store import feature_store, read_slice
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import csr_tensor, is_sparse, made_dense
from sagann.graph.topology import CHECKED_AT_ONCE
from sagann.saga.hops import count_hops
from sagann.saga.shared_lock import MODELS
from sagann.train.contract import Contract
from sagann.train.embedding import LastInput
from sagann.train.metrics import METRICS, Metrics, compute_metrics, predict_classes
from sagann.train.streaming import Streaming

if TYPE_CHECKING:
    from sagann.plan.epoch import Planned
    from sagann.runtime.recorder import Recorder
    from sagann.runtime.streaming.epoch import LossOf
    from sagann.runtime.streaming.streamed import StreamedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedGraph:
    """A graph as the model wants it: checked, prepared, on the device. Made by :meth:`Predictor.prepare`."""

    graph: Graph
    "What the layers walk."


class Predictor:
    """Runs a model in evaluation mode on whole graphs.

    Args:
        model: any module called as ``model(hops, x)``; moved to ``device``.
        contract: what the model expects of a graph.
        device: where to compute.
        streaming: run the model by intervals; None for everything in memory.

    Raises:
        InputError: a graph does not keep the contract, or its values are bad (ids, NaN, labels, splits).
    """

    def __init__(
        self, model: nn.Module, contract: Contract, *, device: torch.device, streaming: Streaming | None = None
    ) -> None:
        require_type(model, nn.Module, where="Predictor.model", fix="Pass a torch.nn.Module.")
        require_type(contract, Contract, where="Predictor.contract", fix="Pass Contract.of(graph).")
        require_type(device, torch.device, where="Predictor.device", fix="Pass torch.device('cpu'), for one.")
        _check_has_data(model)
        self.model = model.to(device)
        self.contract = contract
        self.device = device
        self.num_hops = count_hops(model)
        self.streaming = streaming
        self._streamed: tuple[Graph, StreamedModel] | None = None

    def prepare(self, graph: Graph, *, validate: bool = True) -> PreparedGraph:
        """Check ``graph``, let the model prepare it (self-loops, normalisation), and move it to the device.

        Features of any floating-point dtype become the dtype of the model's parameters. Where the model is streamed, arrays
        with a row per edge that are made on the way lie on the spill folder's disk.

        Args:
            graph: the training graph or a new one.
            validate: check every value; turn it off only for a graph already checked.
        """
        _require_graph(graph)
        if validate:
            validate_graph(graph)
        self.contract.check(graph)
        if 0 < graph.num_edge_types < self.contract.num_edge_types:
            # What the model adds, as loops of a type of their own, is numbered as it was in training.
            graph = replace(graph, num_edge_types=self.contract.num_edge_types)
        with self.large_arrays():
            graph = features_as(graph, parameter_dtype(self.model))
            prepared = prepared_by(self.model, graph)
        if self.streaming is None:
            return PreparedGraph(graph=prepared.in_memory().to(self.device))
        # Blocks are copied to the device as they are needed.
        return PreparedGraph(graph=prepared.to("cpu"))

    def large_arrays(self) -> AbstractContextManager[None]:
        """Inside the ``with`` block, large arrays of a graph that is opened or prepared lie where the model spills, if it does."""
        return nullcontext() if self.streaming is None else self.streaming.large_arrays()

    def evaluate(self, graph: Graph | PreparedGraph) -> dict[str, Metrics]:
        """Measure the model on each split of ``graph``: split to metric to value.

        A graph without splits counts as one split, 'all'. Vertices without a label are left out.
        """
        _require_graph(graph)
        self.contract.check_labels(graph.graph if isinstance(graph, PreparedGraph) else graph)
        prepared = self._prepared(graph)
        return evaluate_splits(_finite(self.logits(prepared), prepared.graph), prepared.graph)

    def predict(self, graph: Graph | PreparedGraph, *, probabilities: bool = False) -> Tensor:
        """Predict every vertex of ``graph``; it needs no labels.

        Args:
            graph: the training graph or a new one.
            probabilities: return probabilities instead of decisions.
        Returns:
            int64 [num_vertices] class ids, or uint8 [num_vertices, C] of 0/1 for multi-label; with
            ``probabilities`` floats [num_vertices, C]. On the CPU.
        """
        prepared = self._prepared(graph)
        logits = _finite(self.logits(prepared), prepared.graph)
        multi_label = self.contract.multi_label
        if probabilities:
            return (logits.sigmoid() if multi_label else logits.softmax(dim=1)).cpu()
        return predict_classes(logits, multi_label=multi_label).cpu()

    def embed(self, graph: Graph | PreparedGraph) -> Tensor:
        """The input of the last SAGA layer: dense float [num_vertices, F], one row per vertex, on the CPU.

        Where the model is streamed, its part before that layer is streamed within the same budget, and the rows lie where it spills.

        Raises:
            LayerError: the model runs no SagaLayer, or cannot be streamed.
            BudgetError: the memory budget cannot be met.
            SpillError: there is too little room to spill.
        """
        prepared = self._prepared(graph).graph
        model, features = LastInput(self.model, self.num_hops), prepared.features
        with _evaluating(self.model):
            if self.streaming is None:
                return self._run(lambda: model(prepared.hops(self.num_hops), features), prepared).to(
                    "cpu", copy=True
                )
            assert features is not None
            streamed = self._stream(model, prepared, trains=False)
            try:
                self._require_room(streamed.plan(features))
                return streamed(features).cpu()
            finally:
                streamed.close()

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """The model's output without dropout: [num_vertices, C], on the device."""
        with _evaluating(self.model):
            return self.forward(prepared.graph)

    def try_out(self, prepared: PreparedGraph) -> None:
        """Make lazy parameters, and find what does not fit, before anything is trained.

        That takes a pass; of a model that is streamed the plans of an epoch and of an evaluation say it.

        Raises:
            LayerError: the output is no logits, or the model cannot be streamed.
            BudgetError: the memory budget cannot be met.
            SpillError: there is too little room to spill.
        """
        graph = prepared.graph
        if self.streaming is None:
            self.logits(prepared)
            return
        self.model.train()
        streamed = self.streamed(graph)
        assert graph.features is not None
        self._check_result(streamed.plan(graph.features, folded=True), graph)
        with _evaluating(self.model):
            evaluation = streamed.plan(graph.features)
        self._check_result(evaluation, graph)
        self._require_room(evaluation)

    def _check_result(self, planned: Planned, graph: Graph) -> None:
        """Refuse a plan whose result is no logits."""
        form = planned.program.forms[planned.program.output]
        like = torch.zeros((), dtype=form.dtype).expand(graph.num_vertices, *form.shape)
        self.contract.check_logits(like, graph, type(self.model).__name__)

    def _require_room(self, evaluation: Planned) -> None:
        """Refuse a disk that has no room for what an evaluation spills and for its result, which lies there too."""
        assert self.streaming is not None
        spill = self.streaming.spill
        if spill is None or self.device.type != "cpu":
            return
        # Imported here: most runs do not stream, and it loads Numba.
        from sagann.runtime.blocks.spill import SpillError

        form = evaluation.program.forms[evaluation.program.output]
        result_bytes = evaluation.plan.bounds[-1] * math.prod(form.shape) * form.dtype.itemsize
        needed_bytes = evaluation.plan.spilled_bytes + evaluation.schedule.constant_bytes + result_bytes
        free_bytes = free_disk_bytes(spill)
        if free_bytes < needed_bytes:
            raise SpillError(
                "too little room to spill what an evaluation takes",
                value=f"{free_bytes} bytes are free, {needed_bytes} are needed, {result_bytes} of them for its result",
                where=f"'{spill}'",
                fix="Free some, spill to another disk, or raise the memory budget.",
            )

    def forward(self, graph: Graph) -> Tensor:
        """The output of the model in the mode it is in, with its gradient; for a graph prepared for it.

        Raises:
            LayerError: the output is no logits, or the model has overwritten the features.
        """
        if self.streaming is None:
            logits = self._run(lambda: self.model(graph.hops(self.num_hops), graph.features), graph)
        else:
            logits = self._run(lambda: self.streamed(graph)(graph.features), graph)
            # To where the labels are, and off the device, which may not hold much.
            logits = logits.to(graph.topology.device)
        return self.contract.check_logits(logits, graph, type(self.model).__name__)

    def _run(self, model: Callable[[], Tensor], graph: Graph) -> Tensor:
        """Run the model.

        Raises:
            LayerError: it has overwritten the features.
        """
        features = graph.features
        if not isinstance(features, Tensor) or features.is_inference():
            # Tensors made in inference mode count no versions, and refuse to be overwritten outside of it by themselves.
            return model()
        version = features._version
        result = model()
        if features._version != version:
            raise LayerError(
                "the model overwrites its input",
                value=f"the features were changed in place {features._version - version} times in one pass",
                where=f"model {type(self.model).__name__}",
                fix="Compute a new tensor (x = x * 2, not x *= 2 or x.mul_(2)), or work on x.clone(); "
                "then load the features again.",
            )
        return result

    def loss(self, graph: Graph, loss_of: LossOf, *, timeline: Recorder | None = None) -> Tensor:
        """A loss that is a sum over vertices, with its gradient.

        Args:
            graph: prepared for the model.
            loss_of: gives the loss of a range of vertices, from their logits.
            timeline: where a streamed epoch is recorded, with its backward.
        """
        if self.streaming is not None:
            streamed = self.streamed(graph)
            assert graph.features is not None
            streamed.timeline = timeline
            try:
                return streamed.loss(graph.features, loss_of)
            finally:
                streamed.timeline = None
        return loss_of(self.forward(graph), slice(0, graph.num_vertices))

    def streamed(self, graph: Graph) -> StreamedModel:
        """The model, streamed over a prepared graph; the last one is kept."""
        if self._streamed is None or self._streamed[0] is not graph:
            self._streamed = None
            assert self.streaming is not None
            self._streamed = graph, self._stream(self.model, graph, trains=self.streaming.trains)
        return self._streamed[1]

    def _stream(self, model: nn.Module, graph: Graph, *, trains: bool) -> StreamedModel:
        # Imported here: most runs do not stream, and it loads Numba.
        from sagann.plan.residency import BudgetError
        from sagann.runtime.streaming.stream import stream

        assert self.streaming is not None
        memory_bytes = self.streaming.memory_bytes
        try:
            return stream(
                model,
                graph,
                budget_bytes=memory_bytes,
                spill=self.streaming.spill,
                trains=trains,
                device=self.device,
            )
        except BudgetError as error:
            if not self.streaming.is_automatic:
                raise
            raise InputError(
                "the run does not fit memory, not even streamed",
                value=f"{'an epoch' if trains else 'an evaluation'} needs at least "
                f"{format_bytes(error.needed_bytes)}, {format_bytes(memory_bytes)} are left for it",
                where=f"graph '{graph.name}'",
                fix="Free memory, use a smaller model or a machine with more memory; where you know better, set the "
                "budget by --memory (TrainConfig.memory).",
            ) from error

    def release(self) -> None:
        """Remove what was spilled; it comes again when it is needed."""
        if self._streamed is not None:
            # Not left to the collector: an error's traceback may hold on to it.
            self._streamed[1].close()
        self._streamed = None
        if self.streaming is not None:
            self.streaming.remove()

    def _prepared(self, graph: Graph | PreparedGraph) -> PreparedGraph:
        return graph if isinstance(graph, PreparedGraph) else self.prepare(graph)


_EVALUATIONS: WeakKeyDictionary[nn.Module, list[dict[nn.Module, bool]]] = WeakKeyDictionary()
"By model that is being evaluated, for each evaluation of it: the modes that its modules had before the first one."


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block, the model is in evaluation mode and no gradient is recorded.

    Of several threads that evaluate a model, the last one to end puts its modules back into the modes that they had.
    """
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


def _require_graph(graph: object) -> None:
    fix = "Open it with sagann.load_graph, or make a sagann.Graph."
    require_type(graph, (Graph, PreparedGraph), where="the graph of a prediction", fix=fix)


def _check_has_data(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise InputError(
                "the model's parameters have no values",
                value=f"'{name}' is on the device 'meta'",
                where=f"model {type(model).__name__}",
                fix="Build the model without device='meta', or give it memory and values: model.to_empty(device='cpu').",
            )


def _finite(logits: Tensor, graph: Graph) -> Tensor:
    step = max(1, CHECKED_AT_ONCE // max(1, logits.shape[1]))
    wrong = torch.cat([~rows.isfinite().all(dim=1) for rows in logits.split(step)])
    if wrong.any():
        raise InputError(
            "the model's output is not finite",
            value=f"vertex {int(wrong.nonzero()[0])} and {int(wrong.sum()) - 1} more",
            where=f"graph '{graph.name}'",
            fix="Look for features far larger than in training; a model that diverged wants a lower lr.",
        )
    return logits


def prepared_by(model: nn.Module, graph: Graph) -> Graph:
    """The graph as the model reads it: by its ``prepare``, with dense features unless it takes sparse ones.

    Raises:
        LayerError: ``prepare`` returns something else than a graph.
    """
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
    takes_sparse = getattr(model, "takes_sparse_features", False)
    if takes_sparse or not is_sparse(features):
        return prepared
    fix = "Set takes_sparse_features = True in its class if it hands them to SAGA layers or LinearEncoder."
    return replace(prepared, features=made_dense(features, f"The model {type(model).__name__}", fix))


def parameter_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of a model's first floating-point parameter; float32 where it has none."""
    dtypes = (parameter.dtype for parameter in model.parameters())
    return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.float32)


def features_as(graph: Graph, dtype: torch.dtype) -> Graph:
    """The graph with its features, dense or ``torch.sparse_csr``, as ``dtype``; itself where they are that already.

    Raises:
        InputError: a feature is too large for ``dtype``.
    """
    features = graph.features
    if features is None or features.dtype == dtype:
        return graph
    store = feature_store(features.values() if is_sparse(features) else features)
    cast = empty_array((store.num_rows, *store.row_shape), dtype, graph.topology.device)
    infinite = False
    step = max(1, CHECKED_AT_ONCE // max(1, math.prod(store.row_shape)))
    for first in range(0, store.num_rows, step):
        last = min(first + step, store.num_rows)
        rows = read_slice(store, first, last).to(dtype)
        infinite = infinite or bool(rows.isinf().any())
        cast[first:last] = rows
    if infinite:
        raise InputError(
            "a feature is too large for the numbers that the model computes in",
            value=f"{features.dtype} features, {dtype} ends at {torch.finfo(dtype).max:.3g}",
            where=f"graph '{graph.name}'",
            fix="Scale the features, for instance to mean 0 and deviation 1.",
        )
    if is_sparse(features):
        # Not by .to(): it would check a matrix that is known to be sound.
        cast = csr_tensor(features.crow_indices(), features.col_indices(), cast, num_columns=graph.num_features)
    return replace(graph, features=cast)


def evaluate_splits(
    logits: Tensor, graph: Graph, *, splits: Collection[str] = SPLIT_NAMES, names: Collection[str] = METRICS
) -> dict[str, Metrics]:
    """Metrics of each of ``splits`` that ``graph`` has; 'all' where it has no splits at all.

    A split without a vertex counts as absent.
    """
    masks = present_splits(graph.splits)
    if not masks:
        masks = {"all": torch.ones(graph.num_vertices, dtype=torch.bool, device=logits.device)}
    found: dict[str, Metrics] = {}
    for name, mask in masks.items():
        if name in splits or name == "all":
            rows, labels = labelled_rows(graph, mask)
            found[name] = compute_metrics(logits, labels, multi_label=graph.multi_label, names=names, rows=rows)
    return found


def present_splits(splits: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of the masks that hold a vertex, in the order train, val, test."""
    return {name: splits[name] for name in SPLIT_NAMES if name in splits and bool(splits[name].any())}


def most_measured(graph: Graph) -> int:
    """Vertices of the largest split, which are measured together; all where there is no split."""
    counts = (int(mask.count_nonzero()) for mask in present_splits(graph.splits).values())
    return max(counts, default=graph.num_vertices)


def labelled_rows(graph: Graph, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The labelled vertices of a split: ids int64 [n], and their labels [n] or [n, C]."""
    assert graph.labels is not None
    known = mask if graph.multi_label else mask & (graph.labels >= 0)
    rows = known.nonzero().squeeze(1)
    return rows, graph.labels.index_select(0, rows)
