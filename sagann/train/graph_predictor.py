"""GraphPredictor: a trained model of whole graphs, on several graphs in one: evaluate, predict, embed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError
from sagann.graph import Graph
from sagann.graph.answers import answers_in
from sagann.kernels.row_dropout import rows_with
from sagann.nn.graph_model import reads_graphs
from sagann.nn.model_call import GRAPHS, class_of
from sagann.train.contract import Contract
from sagann.train.evaluating import evaluating
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph

if TYPE_CHECKING:
    from sagann.runtime.loading.graph_batch import GraphBatch

# Vertices of a batch that is evaluated.
_VERTICES_AT_ONCE = 1 << 16


def predictor_of(model: nn.Module, contract: Contract, **options: Any) -> Predictor:
    """The predictor of a model by what it learns about, vertices, graphs or links; ``options`` are those of :class:`Predictor`."""
    if contract.unit == "link":
        # Imported here: it loads Numba.
        from sagann.train.link_predictor import LinkPredictor

        return LinkPredictor(model, contract, **options)
    return (GraphPredictor if contract.unit == "graph" else Predictor)(model, contract, **options)


class GraphPredictor(Predictor):
    """A Predictor of a model that is called as ``model(hops, x, graph_ptr)`` and gives each graph a row.

    Graphs are computed in batches, each of which is cut from memory, or from mapped files, when its turn comes.

    Raises:
        InputError: the model does not take ``graph_ptr``, or is to be streamed or divided among workers; and as :class:`Predictor`.
    """

    arguments = GRAPHS

    def __init__(self, model: nn.Module, contract: Contract, **options: Any) -> None:
        name = class_of(model).__name__
        if not reads_graphs(model):
            raise InputError(
                "the model gives vertices rows, and graphs none: its forward does not take graph_ptr (in model "
                f"{name})",
                hint=f"Pass sagann.nn.GraphModel(model, width, {contract.num_outputs}), or let forward take (hops, x, graph_ptr) and pool with "
                "sagann.nn.pool.",
            )
        super().__init__(model, contract, **options)
        if self.streaming is not None or self.workers is not None:
            option = "memory (--memory)" if self.workers is None else "workers (--workers)"
            found = "a memory budget" if self.workers is None else f"{self.workers.size} workers"
            raise InputError(
                f"a model of whole graphs is neither streamed nor divided among workers: {found} (in model {name})",
                hint=f"Leave {option} out: the graphs are computed in batches, of which one is in memory at a time.",
            )

    def _prepare(self, graph: Graph) -> PreparedGraph:
        prepared = self._prepared_by_model(graph)
        if prepared.num_graphs != graph.num_graphs:
            raise LayerError(
                f"prepare must keep the graphs: {prepared.num_graphs} graphs, {graph.num_graphs} were passed "
                f"(in {class_of(self.model).__name__}.prepare)",
                hint="Return the same graphs, with graph_ptr; their edges and features may be others.",
            )
        # Batches are cut on the host, and moved to the device.
        return PreparedGraph(graph=prepared.to("cpu"))

    def forward_graphs(self, batch: GraphBatch) -> Tensor:
        """The model's output in its current mode, with its gradient, for the graphs of a batch on the device: [num_graphs, C]."""
        logits = self._run_on(self.model, batch)
        return self.contract.check_logits(logits, batch.num_graphs, self.device, class_of(self.model).__name__)

    def loss_of_graphs(self, batch: GraphBatch) -> Tensor:
        """The mean loss of the graphs of a batch on the device, with its gradient."""
        return self.mean_loss(self.forward_graphs(batch), answers_in(batch.graph_labels, batch.graph_targets))

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """The model's output for all graphs, without dropout: [num_graphs, C], on the device."""
        with evaluating(self.model):
            return torch.cat([self.forward_graphs(batch) for batch in self._batches(prepared.graph)])

    def try_out(self, prepared: PreparedGraph) -> None:
        """Make lazy parameters, and find errors of the model before anything is trained: one batch is computed."""
        with evaluating(self.model):
            self.forward_graphs(next(self._batches(prepared.graph)))

    def _embed(self, prepared: PreparedGraph) -> Tensor:
        with evaluating(self.model):
            # Pooling pads the rows of a batch with more graphs than vertices.
            rows = [
                self._run_on(self._last_input, batch)[: batch.num_vertices]
                for batch in self._batches(prepared.graph)
            ]
        return torch.cat(rows).cpu()

    def _run_on(self, model: nn.Module, batch: GraphBatch) -> Tensor:
        with rows_with(batch.vertices):
            return self._run(
                lambda: model(batch.hops(self.num_hops), batch.features, batch.graph_ptr), batch.features
            )

    def _batches(self, graph: Graph) -> Iterator[GraphBatch]:
        """All graphs in order, in batches on the device."""
        # Imported here: it loads Numba.
        from sagann.runtime.loading import GraphBatches

        mean_vertices = graph.num_vertices / max(1, graph.num_graphs)
        batch_size = max(1, int(_VERTICES_AT_ONCE / max(1.0, mean_vertices)))
        for batch in GraphBatches(graph, batch_size=batch_size, graphs=None, shuffle=False, ahead=0):
            yield batch.to(self.device)
