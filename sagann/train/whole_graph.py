"""WholeGraph: the epoch source whose one step is the whole graph, in memory or streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sagann.train.epoch_source import TrainStep
from sagann.train.metrics import loss_of
from sagann.train.predictor import Predictor, PreparedGraph, labelled_rows

if TYPE_CHECKING:
    from sagann.runtime.recorder import Recorder


class WholeGraph:
    """Full-graph training.

    Args:
        predictor: the model and its device, and how the model is streamed.
        prepared: the training graph.
        profile: whether each epoch is recorded.
    """

    def __init__(self, predictor: Predictor, prepared: PreparedGraph, *, profile: bool = False) -> None:
        self._predictor = predictor
        self._prepared = prepared
        self._graph = prepared.graph
        self._profile = profile
        self.timeline: Recorder | None = None
        rows, labels = labelled_rows(self._graph, self._graph.splits["train"])
        self._rows, self._labels = rows.to(predictor.device), labels.to(predictor.device)
        # Where an interval's rows begin and end is asked on the host, which need not wait for the device then.
        self._rows_on_host = rows.cpu()

    def steps(self, epoch: int) -> Iterator[TrainStep]:
        """One step."""
        yield TrainStep(loss=self._loss, num_labelled=len(self._rows))

    def logits(self) -> Tensor:
        """See :meth:`sagann.train.epoch_source.EpochSource.logits`."""
        return self._predictor.logits(self._prepared)

    def _loss(self) -> Tensor:
        if self._profile:
            # Imported here: most runs are not recorded.
            from sagann.runtime.recorder import Recorder

            self.timeline = Recorder()
        return self._predictor.loss(self._graph, self._loss_of, timeline=self.timeline)

    def _loss_of(self, logits: Tensor, vertices: slice) -> Tensor:
        """What a range of vertices adds to the loss of the training split."""
        if len(logits) == self._graph.num_vertices:
            first, last = 0, len(self._rows)
        else:
            bounds = torch.tensor([vertices.start, vertices.stop])
            first, last = torch.searchsorted(self._rows_on_host, bounds).tolist()
        if first == last:
            return logits.new_zeros(())
        rows = self._rows[first:last] - vertices.start
        multi_label = self._graph.multi_label
        part = loss_of(logits.index_select(0, rows), self._labels[first:last], multi_label=multi_label)
        return part * ((last - first) / len(self._rows))
