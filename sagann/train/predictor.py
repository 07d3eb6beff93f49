"""Predictor: a trained model on a graph, its own or a new one: evaluate, predict, embed."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph import Graph
from sagann.graph.checks import CHECKED_AT_ONCE
from sagann.graph.task import without_others
from sagann.storage.verify import check_graph
from sagann.train.evaluating import evaluating
from sagann.train.last_input import LastInput
from sagann.train.metrics import Metrics, Rows, evaluate_splits, finite, measured_splits, predict_classes
from sagann.train.model_passes import ModelPasses
from sagann.train.own_metrics import measure_own
from sagann.train.preparation import PreparedGraph, features_as, parameter_dtype, prepared_by
from sagann.train.trainable import require_features

if TYPE_CHECKING:
    from sagann.runtime.workers import Workers
    from sagann.train.learned import Learned


class Predictor(ModelPasses):
    """Runs a model in evaluation mode on whole graphs.

    Args:
        model: any module called as ``model(hops, x)``; moved to ``device``.
        contract: the sizes that the model expects of a graph.
        device: where to compute.
        loss: the loss that the model was trained with, for evaluations; None for the default of its task.
        metrics: further metrics of evaluations, by name: see :class:`sagann.train.Trainer`.
        streaming: run the model by intervals; None for everything in memory.
        workers: the workers that divide each graph among them; None for the whole graph in this process. Every worker calls the same
            methods with the same graphs.
        learned: cuts the vertices for the workers by what a run has learned; None for the workers' own policy.
        for_first: whether the first worker alone gets results; the others then get no metrics, and tensors without rows. By default every worker
            gets the results of the whole graph.

    Raises:
        InputError: the model cannot be called so; a graph does not keep the contract, or its values are bad (ids, NaN, labels, splits).
    """

    def prepare(self, graph: Graph, *, validate: bool = True) -> PreparedGraph:
        """Check ``graph``, let the model prepare it (self-loops, normalisation), and move it to the device.

        Features of any floating-point dtype become the dtype of the model's parameters. Where the model is streamed, new
        arrays with a row per edge lie on the spill folder's disk.

        Args:
            graph: the training graph or a new one.
            validate: check every value, and the checksums of the files that the graph was opened from; turn it off only for a
                graph already checked.
        """
        _require_graph(graph)
        # A graph may have answers for another task than the model's.
        graph = without_others(graph, self.contract.task)
        if validate:
            check_graph(graph)
        return self._prepare(graph)

    def _prepared_by_model(self, graph: Graph) -> Graph:
        """The graph as the model reads it, after a check of its sizes."""
        self.contract.check(graph)
        if 0 < graph.num_edge_types < self.contract.num_edge_types:
            # Edges that the model adds, such as loops of a type of their own, get the same type as in training.
            graph = replace(graph, num_edge_types=self.contract.num_edge_types)
        with self.large_arrays():
            graph = features_as(graph, parameter_dtype(self.model))
            return prepared_by(self.model, graph)

    def _prepare(self, graph: Graph) -> PreparedGraph:
        prepared = self._prepared_by_model(graph)
        if self.workers is not None:
            with self.large_arrays():
                # Blocks of a part that is streamed are copied to the device when they are needed.
                device = self.device if self.streaming is None else torch.device("cpu")
                return _divided(prepared, graph, self.workers, device, self.learned)
        if self.streaming is None:
            return PreparedGraph(graph=prepared.in_memory().to(self.device))
        # Blocks are copied to the device when they are needed.
        return PreparedGraph(graph=prepared.to("cpu"))

    def evaluate(self, graph: Graph | PreparedGraph) -> dict[str, Metrics]:
        """Measure the model on each split of ``graph``: split to metric to value.

        A graph without splits counts as one split, 'all'. Vertices, or graphs, without a label are left out, and so are metrics that are NaN or infinite.
        """
        _require_graph(graph)
        self.contract.check_labels(graph_of(graph))
        prepared = self._prepared(graph)
        outputs, measured = self._finite_logits(prepared), prepared.graph.answers
        if self.workers is not None and self._for_first and not self.workers.is_first:
            return {}
        found = finite(evaluate_splits(outputs, measured, task=self.contract.kind, loss=self.mean_loss))
        for name, mask in measured_splits(measured).items() if self.own_metrics else ():
            rows, answers = measured.rows(mask)
            if len(rows):
                found[name] |= measure_own(self.own_metrics, Rows(outputs, rows, len(rows)), answers)
        return found

    def predict(
        self,
        graph: Graph | PreparedGraph,
        *,
        probabilities: bool = False,
        links: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """Predict every vertex of ``graph``, or every graph of several in one, without reading labels or targets.

        Args:
            graph: the training graph or a new one.
            probabilities: return probabilities of classes instead of decisions.
            links: None; pairs of vertices are scored by a model of links (:class:`sagann.train.link_predictor.LinkPredictor`).
        Returns:
            int64 [num_vertices] class ids (of a task on whole graphs [num_graphs], as below), or uint8 [num_vertices, C] of 0/1 for multi-label; with
            ``probabilities`` floats [num_vertices, C]. For a regression floats [num_vertices], or [num_vertices, T] for T targets of 2 or
            more. On the CPU.
        Raises:
            InputError: probabilities of a regression.
        """
        _require_graph(graph)
        if links is not None:
            raise InputError(
                "only a model of links scores pairs of vertices: links are passed, the task is "
                f"{self.contract.task} (in predict)",
                hint="Leave links out.",
            )
        task = self.contract.kind
        if probabilities and task == "regression":
            raise InputError(
                "a regression has no probabilities: probabilities=True (in predict)",
                hint="Leave it out: the predictions are values.",
            )
        logits = self._finite_logits(self._prepared(graph))
        if task == "regression":
            # A copy, because the outputs of a streamed model lie in a file.
            return (logits[:, 0] if self.contract.num_outputs == 1 else logits).to("cpu", copy=True)
        multi_label = task == "multi-label"
        if probabilities:
            return (logits.sigmoid() if multi_label else logits.softmax(dim=1)).cpu()
        return predict_classes(logits, multi_label=multi_label).cpu()

    def embed(self, graph: Graph | PreparedGraph) -> Tensor:
        """The input of the last SAGA layer: dense float [num_vertices, F], one row per vertex, on the CPU.

        A streamed model runs up to that layer within the same budget, and the result lies in its spill folder.

        Raises:
            LayerError: the model runs no SagaLayer, or cannot be streamed.
            BudgetError: the memory budget cannot be met.
            SpillError: there is too little room to spill.
        """
        _require_graph(graph)
        return self._embed(self._prepared(graph))

    @cached_property
    def _last_input(self) -> LastInput:
        """The model up to the input of its last layer; kept, because what it is traced to is kept with it."""
        return LastInput(self.model, self.num_hops)

    def _embed(self, prepared: PreparedGraph) -> Tensor:
        model, part = self._last_input, prepared.part
        with evaluating(self.model):
            if self.passes is not None:
                rows = self.passes.rows_of(model, prepared)
            elif part is not None:
                rows = self._on_part(model, part)
            else:
                rows = self._on_graph(model, prepared.graph).to("cpu", copy=True)
            return rows if part is None else self._gathered(part, rows, "gathering embeddings")

    def _prepared(self, graph: Graph | PreparedGraph) -> PreparedGraph:
        prepared = graph if isinstance(graph, PreparedGraph) else self.prepare(graph)
        with evaluating(self.model):
            self.require_row_wise(prepared)
        return prepared

    def _finite_logits(self, prepared: PreparedGraph) -> Tensor:
        logits = self.logits(prepared)
        step = max(1, CHECKED_AT_ONCE // max(1, logits.shape[1]))
        wrong = torch.cat([~rows.isfinite().all(dim=1) for rows in logits.split(step)])
        if wrong.any():
            raise InputError(
                f"the model's output is not finite: {self.contract.unit} {int(wrong.nonzero()[0])} and "
                f"{int(wrong.sum()) - 1} more (in graph '{prepared.graph.name}')",
                hint="Look for features far larger than in training; a model that diverged wants a lower lr.",
            )
        return logits


def _divided(
    prepared: Graph, opened: Graph, workers: Workers, device: torch.device, learned: Learned | None
) -> PreparedGraph:
    """A worker's part of a prepared graph. What the model has made of the whole graph's edges and features is freed."""
    # Imported here: most runs have no workers, and it loads torch.distributed.
    from sagann.runtime.workers import worker_part

    require_features(prepared, "workers", hint="Use one worker, or give the graph features.")
    bounds = None if learned is None else learned.cut(prepared.topology, workers)
    part = worker_part(prepared, workers, opened=opened, device=device, bounds=bounds)
    return PreparedGraph(graph=replace(prepared, topology=opened.topology, features=opened.features), part=part)


def graph_of(graph: Graph | PreparedGraph) -> Graph:
    """The graph itself, or the one that was prepared."""
    return graph.graph if isinstance(graph, PreparedGraph) else graph


def _require_graph(graph: object) -> None:
    hint = "Open it with sagann.load_graph, or make a sagann.Graph."
    require_type(graph, (Graph, PreparedGraph), where="the graph of a prediction", hint=hint)
