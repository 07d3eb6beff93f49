"""Streamed: the runner of a model by intervals, inside a memory budget."""

from __future__ import annotations

import json
import math
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sagann.byte_size import format_bytes, with_exact
from sagann.errors import InputError
from sagann.free_space import disk_of, free_disk_bytes
from sagann.graph.feature_store import Features
from sagann.train.evaluating import evaluating
from sagann.train.runner import Runner, unchanged
from sagann.train.streaming import Streaming
from sagann.train.trainable import require_one_graph

if TYPE_CHECKING:
    from sagann.plan.epoch import Planned
    from sagann.runtime.recorder import Recorder
    from sagann.runtime.streaming.epoch import LossOf
    from sagann.runtime.streaming.streamed import StreamedModel


class Streamed(Runner):
    """A model by intervals, over a whole graph or a worker's part. The streamed model is made when it is first needed; all threads share it."""

    streaming: Streaming

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        assert self.streaming is not None
        self._kept: StreamedModel | None = None
        self._lock = threading.Lock()

    @property
    def _features(self) -> Features:
        features = self.prepared.walked.features
        assert features is not None
        return features

    def streamed(self) -> StreamedModel:
        """The streamed model."""
        with self._lock:
            if self._kept is None:
                self._kept = self._made()
            return self._kept

    def _made(self) -> StreamedModel:
        with ExitStack() as stack:
            with self.team.together("cutting the graph"):
                streamed = self._stream(self.model, trains=self.streaming.trains)
                # Another worker may have failed.
                stack.callback(streamed.close)
                # What trains is planned before its first epoch.
                evaluation = None if self.streaming.trains else self._evaluation(streamed)
            if evaluation is not None:
                self._require_room(evaluation)
            stack.pop_all()
        return streamed

    def _stream(self, model: nn.Module, *, trains: bool) -> StreamedModel:
        """A model inside the budget; one that cannot be met is an InputError."""
        # Imported here: most runs do not stream, and it loads Numba.
        from sagann.plan.residency import BudgetError
        from sagann.runtime.streaming.stream import stream

        require_one_graph(self.model, self.prepared.graph)
        graph, part, budget = self.prepared.graph, self.prepared.part, self.streaming
        within: dict[str, Any] = {"spill": budget.spill, "trains": trains, "device": self.device}
        try:
            return stream(model, part or graph, budget_bytes=budget.memory_bytes, **within)
        except BudgetError as error:
            if budget.is_half:
                raise InputError(
                    "the memory budget cannot be met: an evaluation has half of it, "
                    f"{format_bytes(budget.memory_bytes)}, and needs at least {format_bytes(error.needed_bytes)} "
                    f"(in graph '{graph.name}')",
                    hint="Raise the budget (--memory, TrainConfig.memory), which the training step needs too: with "
                    f"{with_exact(2 * max(error.needed_bytes, error.offered_bytes))}, evaluations are not many times slower.",
                ) from error
            if not budget.is_automatic:
                raise
            raise InputError(
                f"the run does not fit memory, not even streamed: {'an epoch' if trains else 'an evaluation'} "
                f"needs at least {format_bytes(error.needed_bytes)}, {format_bytes(budget.memory_bytes)} are "
                f"left for it (in graph '{graph.name}')",
                hint="Free memory, use a smaller model or a machine with more memory; where you know better, set the "
                "budget by --memory (TrainConfig.memory).",
            ) from error

    def _evaluation(self, streamed: StreamedModel) -> Planned:
        with evaluating(self.model):
            return streamed.plan(self._features)

    def _require_room(self, evaluation: Planned, *, epoch: Planned | None = None) -> None:
        """Raise SpillError where the disk lacks room for the blocks that an evaluation, or an epoch, spills, and for the evaluation's result.

        Workers whose spill folders lie on one disk of one machine need room for all of them.
        """
        spill, own, num_vertices = self.streaming.spill, self.prepared.vertices, self.prepared.graph.num_vertices
        if spill is None or self.device.type != "cpu":
            return
        # Imported here: most runs do not stream, and it loads Numba.
        from sagann.runtime.blocks.spill import SpillError

        gathers = self.prepared.part is not None and (self.team.is_first or not self._for_first)
        num_rows = own.stop - own.start + (num_vertices if gathers else 0)
        form = evaluation.program.forms[evaluation.program.output]
        result_bytes = num_rows * math.prod(form.shape) * form.dtype.itemsize
        needed_bytes = max(evaluation.disk_bytes + result_bytes, 0 if epoch is None else epoch.disk_bytes)
        with self.team.together("finding room to spill"):
            mine = json.dumps([disk_of(spill), needed_bytes, free_disk_bytes(spill), result_bytes])
            on_disk = [json.loads(text) for text in self.team.texts(mine, "finding room to spill")]
            on_disk = [each for each in on_disk if each[0] == disk_of(spill)]
            needed_bytes, result_bytes = (sum(each[number] for each in on_disk) for number in (1, 3))
            free_bytes = min(each[2] for each in on_disk)
            sharing = f" by the {len(on_disk)} workers on this disk" if len(on_disk) > 1 else ""
            if free_bytes < needed_bytes:
                raise SpillError(
                    f"too little room to spill blocks: {with_exact(free_bytes)} are free, "
                    f"{with_exact(needed_bytes)} are needed{sharing}; the results of an evaluation are "
                    f"{with_exact(result_bytes)} (in '{spill}')",
                    hint="Free some, spill to another disk, or raise the memory budget.",
                )

    def try_out(self) -> None:
        self.model.train()
        streamed, epoch = self.streamed(), None
        with self.team.together("planning"):
            if self.streaming.trains:
                epoch = streamed.plan(self._features, folded=self._head.folds)
                self._check(epoch)
            evaluation = self._evaluation(streamed)
            self._check(evaluation)
        self._require_room(evaluation, epoch=epoch)

    def _check(self, planned: Planned) -> None:
        form = planned.program.forms[planned.program.output]
        count, device = self.prepared.graph.num_vertices, self.prepared.walked.topology.device
        self._head.check(torch.zeros((), dtype=form.dtype).expand(count, *form.shape), count, device)

    def _own_loss(self, loss_of: LossOf, timeline: Recorder | None) -> Tensor:
        streamed = self.streamed()
        streamed.timeline = timeline
        try:
            return streamed.loss(self._features, loss_of)
        finally:
            streamed.timeline = None

    def rows_of(self, model: nn.Module) -> Tensor:
        with ExitStack() as stack:
            with self.team.together("planning an embedding"):
                streamed = self._stream(model, trains=False)
                stack.callback(streamed.close)
                evaluation = streamed.plan(self._features)
            self._require_room(evaluation)
            return streamed(self._features).cpu()

    def _run(self, model: nn.Module) -> Tensor:
        streamed = self.streamed()
        with unchanged(self.model, self._features):
            rows = streamed(self._features)
        # Labels of a streamed graph lie on the host, and the device may be too small for all rows.
        return rows.to(self.prepared.walked.topology.device)

    def close(self) -> None:
        with self._lock:
            if self._kept is not None:
                # Closed here: the traceback of an error may keep the object from being collected.
                self._kept.close()
            self._kept = None
