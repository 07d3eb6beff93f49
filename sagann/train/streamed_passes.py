"""StreamedPasses: what a predictor does with a model that is streamed, over a whole graph or over a worker's part of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sagann.graph import Graph
from sagann.graph.feature_store import Features
from sagann.train.evaluating import evaluating
from sagann.train.preparation import PreparedGraph
from sagann.train.streaming import Streaming
from sagann.train.trainable import require_one_graph

if TYPE_CHECKING:
    from sagann.plan.epoch import Planned
    from sagann.runtime.recorder import Recorder
    from sagann.runtime.streaming.epoch import LossOf
    from sagann.runtime.streaming.streamed import StreamedModel
    from sagann.runtime.workers import WorkerPart


class StreamedPasses:
    """Plans and runs the passes of a model that is streamed.

    The streamed model of the last prepared graph is kept, and all threads share it.

    Args:
        model: the model.
        streaming: the budget, and the folder for blocks.
        device: where to compute.
        for_first: whether the first worker alone gathers the rows of all vertices.
    """

    def __init__(self, model: nn.Module, streaming: Streaming, *, device: torch.device, for_first: bool) -> None:
        self.streaming = streaming
        self._model = model
        self._device = device
        self._for_first = for_first
        self._kept: tuple[Graph, StreamedModel] | None = None
        self._lock = threading.Lock()

    def over(self, prepared: PreparedGraph) -> StreamedModel:
        """The model, streamed over a prepared graph or a worker's part of it."""
        with self._lock:
            if self._kept is None or self._kept[0] is not prepared.graph:
                self._kept = None
                self._kept = prepared.graph, self._made(prepared)
            return self._kept[1]

    def _made(self, prepared: PreparedGraph) -> StreamedModel:
        trains, evaluation = self.streaming.trains, None
        with ExitStack() as stack:
            with _together("cutting the graph", prepared.part):
                streamed = self._stream(self._model, prepared, trains=trains)
                # Another worker may have failed.
                stack.callback(streamed.close)
                # What trains is planned before its first epoch.
                if prepared.part is not None and not trains:
                    with evaluating(self._model):
                        evaluation = streamed.plan(_features(prepared))
            if evaluation is not None:
                self._require_room(evaluation, prepared)
            stack.pop_all()
        return streamed

    def _stream(self, model: nn.Module, prepared: PreparedGraph, *, trains: bool) -> StreamedModel:
        require_one_graph(self._model, prepared.graph)
        return self.streaming.stream(model, prepared.graph, self._device, trains=trains, part=prepared.part)

    def plan(self, prepared: PreparedGraph, check: Callable[[Planned], None]) -> None:
        """Plan an evaluation, and an epoch if it is streamed too, and find errors of the model, the budget and the disk.

        Args:
            prepared: the graph.
            check: raises where the form of a pass's result is wrong.
        """
        streamed, epoch = self.over(prepared), None
        with _together("planning", prepared.part):
            if self.streaming.trains:
                epoch = streamed.plan(_features(prepared), folded=True)
                check(epoch)
            with evaluating(self._model):
                evaluation = streamed.plan(_features(prepared))
            check(evaluation)
        self._require_room(evaluation, prepared, epoch=epoch)

    def _require_room(self, evaluation: Planned, prepared: PreparedGraph, *, epoch: Planned | None = None) -> None:
        """Refuse what spills blocks for which the disk has no room, at all workers if it has none at one."""
        part, num_vertices = prepared.part, prepared.graph.num_vertices
        require_room = partial(self.streaming.require_room, evaluation, self._device, epoch=epoch)
        if part is None:
            require_room(num_rows=num_vertices)
            return
        gathers = part.workers.is_first or not self._for_first
        with _together("finding room to spill", part):
            require_room(num_rows=part.topology.num_dst + (num_vertices if gathers else 0), workers=part.workers)

    def rows(self, prepared: PreparedGraph) -> Tensor:
        """The model's output in its current mode, with its gradient; of a worker's part, for its own vertices."""
        return self.over(prepared)(_features(prepared))

    def rows_of(self, model: nn.Module, prepared: PreparedGraph) -> Tensor:
        """The output of another model, without a gradient, on the CPU; of a worker's part, for its own vertices."""
        with ExitStack() as stack:
            with _together("planning an embedding", prepared.part):
                streamed = self._stream(model, prepared, trains=False)
                stack.callback(streamed.close)
                evaluation = streamed.plan(_features(prepared))
            self._require_room(evaluation, prepared)
            return streamed(_features(prepared)).cpu()

    def loss(self, prepared: PreparedGraph, loss_of: LossOf, *, timeline: Recorder | None = None) -> Tensor:
        """A loss over a prepared graph, with its gradient; of a worker's part, over its own vertices. ``timeline`` records the epoch."""
        streamed = self.over(prepared)
        streamed.timeline = timeline
        try:
            return streamed.loss(_features(prepared), loss_of)
        finally:
            streamed.timeline = None

    def release(self) -> None:
        """Remove spilled blocks. The next call makes them again."""
        with self._lock:
            if self._kept is not None:
                # Closed here: the traceback of an error may keep the object from being collected.
                self._kept[1].close()
            self._kept = None


def _features(prepared: PreparedGraph) -> Features:
    assert prepared.features is not None
    return prepared.features


def _together(doing: str, part: WorkerPart | None) -> AbstractContextManager[None]:
    """Inside the ``with`` block, an error at one worker ends all of them."""
    return nullcontext() if part is None else part.workers.together(doing)
