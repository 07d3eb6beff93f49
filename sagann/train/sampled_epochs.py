"""SampledEpochs: the epoch source whose steps are mini-batches, sampled ahead of the step that is trained.

Evaluation walks all in-edges of the whole graph, in memory or streamed.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from sagann.runtime.loading import MiniBatch, MiniBatches
from sagann.train.config import TrainConfig
from sagann.train.epoch_source import TrainStep
from sagann.train.metrics import loss_of
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph

if TYPE_CHECKING:
    from sagann.runtime.recorder import Recorder


class SampledEpochs:
    """The epoch source of ``TrainConfig.sample``: every labelled training vertex is in one mini-batch of an epoch.

    Batches depend on the run's seed, the epoch and their number. Dropout draws its seeds from PyTorch's generator in the training
    step, which no thread of the pipeline touches; its masks are those of a batch's own rows, drawn anew for each batch.
    """

    def __init__(self, predictor: Predictor, prepared: PreparedGraph, config: TrainConfig) -> None:
        assert config.sample is not None
        self._predictor = predictor
        self._prepared = prepared
        self.timeline: Recorder | None = None
        # Samplers read the host's memory, where a graph of a streamed evaluation lies already.
        graph = prepared.graph.to("cpu")
        self._minibatches = MiniBatches(
            graph,
            fanouts=config.sample,
            batch_size=config.batch_size,
            seeds="train",
            seed=config.seed,
            threads=config.sampling_threads,
            ahead=config.batches_ahead,
            device=predictor.device,
        )

    def steps(self, epoch: int) -> Generator[TrainStep, None, None]:
        with self._minibatches.batches(epoch) as batches:
            for batch in batches:
                yield TrainStep(loss=partial(self._loss, batch), num_labelled=len(batch.seeds))

    def logits(self) -> Tensor:
        return self._predictor.logits(self._prepared)

    def _loss(self, batch: MiniBatch) -> Tensor:
        assert batch.labels is not None
        logits = self._predictor.forward_batch(batch)
        return loss_of(logits, batch.labels, multi_label=self._predictor.contract.multi_label)
