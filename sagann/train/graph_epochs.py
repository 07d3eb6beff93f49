"""GraphEpochs: the epoch source whose steps are batches of whole graphs."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from sagann.config import TrainConfig
from sagann.runtime.loading import GraphBatches
from sagann.runtime.loading.batches import useful_ahead
from sagann.saga.batch_norms import batch_size_without_rest
from sagann.train.epoch_source import PredictorSource, TrainStep
from sagann.train.graph_predictor import GraphPredictor
from sagann.train.preparation import PreparedGraph


class GraphEpochs(PredictorSource[GraphPredictor]):
    """The epoch source of a task on whole graphs: every training graph with a known answer is in one batch of an epoch.

    Batches depend on the run's seed, the epoch and their number.

    Args:
        predictor: has the model, and evaluates it.
        prepared: several graphs in one, as the model reads them.
        config: how to train.
    """

    def __init__(self, predictor: GraphPredictor, prepared: PreparedGraph, config: TrainConfig) -> None:
        super().__init__(predictor, prepared)
        self._batches = GraphBatches(
            prepared.graph,
            batch_size=config.graphs_per_batch,
            graphs="train",
            seed=config.seed,
            ahead=useful_ahead(prepared.graph, predictor.device)
            if config.batches_ahead is None
            else config.batches_ahead,
        )
        batches = self._batches
        batches.batch_size = batch_size_without_rest(predictor.model, len(batches.graphs), batches.batch_size)

    @property
    def num_batches(self) -> int:
        return len(self._batches)

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        with self._batches.batches(epoch, first=first) as batches:
            for batch in batches:
                yield TrainStep(
                    loss=partial(self._predictor.loss_of_graphs, batch.to(self._predictor.device)),
                    num_labelled=batch.num_graphs,
                    num_edges=batch.num_edges * self._predictor.num_hops,
                )
