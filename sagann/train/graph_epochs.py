"""GraphEpochs: the epoch source whose steps are batches of whole graphs."""

from __future__ import annotations

from sagann.config import TrainConfig
from sagann.runtime.loading import GraphBatch, GraphBatches
from sagann.runtime.loading.batches import useful_ahead
from sagann.saga.batch_norms import batch_size_without_rest
from sagann.train.epoch_source import BatchEpochs, TrainStep
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph


class GraphEpochs(BatchEpochs):
    """The epoch source of a task on whole graphs: every training graph with a known answer is in one batch of an epoch.

    Batches depend on the run's seed, the epoch and their number.

    Args:
        predictor: has the model, and evaluates it.
        prepared: several graphs in one, as the model reads them.
        config: how to train.
    """

    def __init__(self, predictor: Predictor, prepared: PreparedGraph, config: TrainConfig) -> None:
        super().__init__(predictor, prepared)
        self.minibatches = GraphBatches(
            prepared.graph,
            batch_size=config.graphs_per_batch,
            graphs="train",
            seed=config.seed,
            ahead=useful_ahead(prepared.graph, predictor.device)
            if config.batches_ahead is None
            else config.batches_ahead,
        )
        batches = self.minibatches
        batches.batch_size = batch_size_without_rest(predictor.model, len(batches.graphs), batches.batch_size)

    def step(self, batch: GraphBatch) -> TrainStep:
        return super().step(batch.to(self._predictor.device))
