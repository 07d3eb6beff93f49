"""Predictor: a trained model on a graph, its own or a new one: evaluate, predict, embed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError, first_line, require_type
from sagann.graph import SPLIT_NAMES, Graph
from sagann.graph.graph import without_others
from sagann.runtime.team import SOLO, Team
from sagann.storage.verify import check_graph
from sagann.train.contract import Contract
from sagann.train.heads import HEADS, Batch
from sagann.train.losses import Loss, default_loss
from sagann.train.metrics import (
    Metrics,
    OwnMetrics,
    Rows,
    check_own_metrics,
    evaluate_splits,
    finite,
    measure_own,
    measured_splits,
)
from sagann.train.runner import (
    ByGraphs,
    OnPart,
    PreparedGraph,
    Runner,
    evaluating,
    features_as,
    large_arrays,
    parameter_dtype,
    prepared_by,
    rows_of_batch,
)
from sagann.train.streamed import Streamed, Streaming
from sagann.train.trainable import require_features

if TYPE_CHECKING:
    from sagann.train.balancer import Learned


class Predictor:
    """Runs a model on graphs: prepares them, and makes results of the model's rows.

    Args:
        model: any module called as ``model(hops, x)``, or where whole graphs are learned as ``model(hops, x, graph_ptr)``; moved to ``device``.
            Of links, it gives each vertex a row; the product of two rows scores a link, or ``model.score(src, dst, types)``.
        contract: the task, and the sizes that the model expects of a graph.
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
        InputError: the model cannot be called so; a graph does not keep the contract, or its values are bad (ids, NaN, labels, splits); a model of
            whole graphs is to be streamed.
    """

    def __init__(
        self,
        model: nn.Module,
        contract: Contract,
        *,
        device: torch.device,
        loss: Loss | None = None,
        metrics: OwnMetrics | None = None,
        streaming: Streaming | None = None,
        workers: Team | None = None,
        learned: Learned | None = None,
        for_first: bool = False,
    ) -> None:
        require_type(model, nn.Module, where="Predictor.model", hint="Pass a torch.nn.Module.")
        require_type(contract, Contract, where="Predictor.contract", hint="Pass Contract.of(graph).")
        require_type(device, torch.device, where="Predictor.device", hint="Pass torch.device('cpu'), for one.")
        self.contract, self.device = contract, device
        self.mean_loss = loss or default_loss(contract.kind)
        self.head = HEADS[contract.unit](model, contract, self.mean_loss, device)
        self.model = model.to(device)
        self.own_metrics = metrics or {}
        check_own_metrics(self.own_metrics, where="Predictor.metrics")
        self.num_hops = self.head.num_hops
        self.team, self.learned, self.streaming = workers or SOLO, learned, streaming
        self._for_first = for_first
        self._kept: Runner | None = None
        "The runner of the last graph; all threads share it."
        self._lock = threading.Lock()
        if contract.unit == "graph" and streaming is not None:
            raise InputError(
                f"a model of whole graphs is not streamed: a memory budget (in model {self.head.name})",
                hint="Leave memory (--memory) out: the graphs are computed in batches, of which one is in memory at a time.",
            )

    def stream_within(self, streaming: Streaming | None) -> None:
        """Stream the model from now on within ``streaming``; None for everything in memory."""
        self.streaming, self._kept = streaming, None

    def copied(self, *, device: torch.device | None = None) -> Predictor:
        """A predictor with a copy of the model, in memory. A model that cannot be copied is an InputError."""
        try:
            model = copy.deepcopy(self.model)
        except (TypeError, RuntimeError) as error:
            raise InputError(
                f"the model cannot be copied: {first_line(error)} (in model {type(self.model).__name__})",
                hint="Make it work with copy.deepcopy: keep locks, files and results with a gradient out of its attributes.",
            ) from error
        return Predictor(model, self.contract, device=device or self.device, loss=self.mean_loss)

    def runner(self, prepared: PreparedGraph) -> Runner:
        """How the model runs over a prepared graph."""
        with self._lock:
            if self._kept is None or self._kept.prepared.graph is not prepared.graph:
                kind: type[Runner] = Runner if prepared.part is None else OnPart
                if self.contract.unit == "graph":
                    kind = ByGraphs
                elif self.streaming is not None:
                    kind = Streamed
                given: dict[str, Any] = {"streaming": self.streaming, "for_first": self._for_first}
                self._kept = kind(self.model, prepared, self.head, device=self.device, **given)
            return self._kept

    def prepare(self, graph: Graph, *, validate: bool = True, samples: bool = False) -> PreparedGraph:
        """Check ``graph``, let the model prepare it (self-loops, normalisation), and move it to the device.

        Features of any floating-point dtype become the dtype of the model's parameters. Where the model is streamed, new
        arrays with a row per edge lie on the spill folder's disk.

        Args:
            graph: the training graph or a new one.
            validate: check every value, and the checksums of the files that the graph was opened from; turn it off only for a
                graph already checked.
            samples: where workers divide the graph, have them exchange edges and features for mini-batches.
        """
        # A graph may have answers for another task than the model's.
        graph = without_others(_graph_of(graph), self.contract.task)
        if validate:
            check_graph(graph)
        self.contract.check(graph)
        num_types = graph.num_edge_types and self.contract.num_edge_types
        with large_arrays(self.streaming):
            # Edges that the model adds, such as loops of a type of their own, get the same type as in training.
            typed = replace(graph, num_edge_types=num_types) if num_types != graph.num_edge_types else graph
            prepared = prepared_by(self.model, features_as(typed, parameter_dtype(self.model)))
            if prepared.num_graphs != graph.num_graphs and self.contract.unit == "graph":
                raise LayerError(
                    f"prepare must keep the graphs: {prepared.num_graphs} graphs, {graph.num_graphs} were passed "
                    f"(in {self.head.name}.prepare)",
                    hint="Return the same graphs, with graph_ptr; their edges and features may be others.",
                )
            # Batches of graphs, and blocks of a model that is streamed, are cut on the host and copied to the device when they are needed.
            stays = self.streaming is not None or self.contract.unit == "graph"
            device = torch.device("cpu") if stays else self.device
            if self.team.size > 1 and self.contract.unit != "graph":
                return self._divided(prepared, graph, device, samples=samples)
        return PreparedGraph(
            graph=prepared.to("cpu") if stays else prepared.in_memory().to(device),
            opened=graph.topology,
            team=self.team,
        )

    def _divided(self, prepared: Graph, opened: Graph, device: torch.device, *, samples: bool) -> PreparedGraph:
        """A worker's part of a prepared graph. What the model has made of the whole graph's edges and features is freed."""
        from sagann.runtime.workers import PartEdges, PartRows, Workers, worker_part

        require_features(prepared, "workers", hint="Use one worker, or give the graph features.")
        assert isinstance(self.team, Workers)
        bounds = None if self.learned is None else self.learned.cut(prepared.topology, self.team)
        part = worker_part(prepared, self.team, opened=opened, device=device, bounds=bounds)
        known = replace(prepared, topology=opened.topology, features=opened.features)
        divided = PreparedGraph(graph=known, opened=opened.topology, part=part, team=self.team)
        if not samples:
            return divided
        # Two threads exchange what mini-batches read.
        edges, rows = (part.workers.aside(doing) for doing in ("sampling", "loading"))
        return replace(divided, edges=PartEdges(part, edges), rows=PartRows(part, rows))

    def try_out(self, prepared: PreparedGraph) -> None:
        """Make lazy parameters, and find errors of the model, the budget and the disk before anything is trained."""
        self.runner(prepared).try_out()

    def forward_batch(self, batch: Batch) -> Tensor:
        """The model's rows in its current mode, with their gradient, for the seeds of a mini-batch, or for some graphs."""
        return rows_of_batch(self.model, self.head, batch)

    def loss_of_batch(self, batch: Batch) -> Tensor:
        """The mean loss of a batch, with its gradient."""
        return self.head.loss(self.forward_batch(batch), batch)

    def logits(self, prepared: PreparedGraph, *, splits: Collection[str] = SPLIT_NAMES) -> Tensor:
        """What is measured, without dropout: outputs [num_vertices, C], or [num_graphs, C]; scores of the links of some splits."""
        with evaluating(self.model):
            rows = self.runner(prepared).all_outputs()
            return self.head.outputs(rows, prepared.graph, splits) if self._gets_results else rows

    @property
    def _gets_results(self) -> bool:
        return self.team.is_first or not self._for_first

    def evaluate(self, graph: Graph | PreparedGraph) -> dict[str, Metrics]:
        """Measure the model on each split of ``graph``: split to metric to value.

        A graph without splits counts as one split, 'all'. Vertices, or graphs, without a label are left out, and so are metrics that are NaN or infinite.
        """
        self.contract.check_labels(_graph_of(graph))
        prepared = self._prepared(graph)
        outputs, measured = self.logits(prepared), prepared.graph.answers
        if not self._gets_results:
            return {}
        self.head.require_finite(outputs, prepared.graph)
        found = finite(evaluate_splits(outputs, measured, task=self.contract.kind, loss=self.mean_loss))
        for name, mask in measured_splits(measured).items() if self.own_metrics else ():
            rows, answers = measured.rows(mask)
            if len(rows):
                found[name] |= measure_own(self.own_metrics, Rows(outputs, rows, len(rows)), answers)
        return found

    def predict(
        self, graph: Graph | PreparedGraph, *, probabilities: bool = False, links: tuple[Tensor, ...] | None = None
    ) -> Tensor:
        """Predict every vertex of ``graph``, or every graph of several in one, without reading labels or targets; or score pairs of vertices.

        Args:
            graph: the training graph or a new one.
            probabilities: return probabilities of classes, or of links, instead of decisions.
            links: where links are learned, the pairs of vertices to score, with messages along all edges of ``graph``: sources and destinations,
                int64 [n] each; of a graph with edge types also the types, int64 [n]. Else None.
        Returns:
            int64 [num_vertices] class ids (of a task on whole graphs [num_graphs], as below), or uint8 [num_vertices, C] of 0/1 for multi-label; with
            ``probabilities`` floats [num_vertices, C]. For a regression floats [num_vertices], or [num_vertices, T] for T targets of 2 or
            more. For links floats [n] of probabilities, or uint8 [n]: 1 where an edge is expected (probability above 0.5). On the CPU.
        Raises:
            InputError: probabilities of a regression; links are missing, have an id out of range, or are not learned.
        """
        pairs = self.head.check_request(_graph_of(graph), probabilities=probabilities, links=links)
        prepared = self._prepared(graph)
        with evaluating(self.model):
            rows = self.runner(prepared).all_outputs()
            return self.head.predict(rows, prepared.graph, probabilities=probabilities, links=pairs)

    def embed(self, graph: Graph | PreparedGraph) -> Tensor:
        """The input of the last SAGA layer; where links are learned, the rows that they are scored by. Dense float [num_vertices, F], on the CPU.

        A streamed model runs up to that layer within the same budget, and the result lies in its spill folder.

        Raises:
            LayerError: the model runs no SagaLayer, or cannot be streamed.
            BudgetError: the memory budget cannot be met.
            SpillError: there is too little room to spill.
        """
        runner = self.runner(self._prepared(graph))
        with evaluating(self.model):
            return runner.embedding(self.head.embedder)

    def _prepared(self, graph: Graph | PreparedGraph) -> PreparedGraph:
        prepared = graph if isinstance(graph, PreparedGraph) else self.prepare(graph)
        with evaluating(self.model):
            self.runner(prepared).require_row_wise()
        return prepared

    def release(self) -> None:
        """Remove spilled blocks. The next call makes them again."""
        with self._lock:
            if self._kept is not None:
                self._kept.close()


def _graph_of(graph: object) -> Graph:
    """The graph of a prediction, checked or not."""
    hint = "Open it with sagann.load_graph, or make a sagann.Graph."
    require_type(graph, (Graph, PreparedGraph), where="the graph of a prediction", hint=hint)
    return graph.graph if isinstance(graph, PreparedGraph) else graph  # type: ignore[return-value]
