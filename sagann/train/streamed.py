"""Streamed: the runner of a model by intervals, inside a memory budget."""

from __future__ import annotations

import json
import math
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sagann.byte_size import format_bytes, with_exact
from sagann.config import TrainConfig
from sagann.errors import InputError, SagannError
from sagann.free_space import disk_of, free_disk_bytes, is_memory
from sagann.graph.feature_store import Features
from sagann.train.resources import resolve_devices
from sagann.train.run_folder import PICTURE_FILE, PROFILE_FILE
from sagann.train.runner import Runner, evaluating, unchanged
from sagann.train.trainable import require_one_graph

if TYPE_CHECKING:
    from sagann.plan.epoch import Planned
    from sagann.plan.timeline import Timeline
    from sagann.runtime.recorder import Recorder
    from sagann.runtime.streaming.epoch import LossOf
    from sagann.runtime.streaming.streamed import StreamedModel


_SEGMENT_BYTES = 22 << 20
"PyTorch reserves memory in segments: of 2 MiB for small tensors, of 20 MiB for others."


@dataclass(frozen=True, kw_only=True, slots=True)
class Streaming:
    """The budget of a streamed model, and its spill folder."""

    memory_bytes: int
    "Budget of an epoch's tensors of vertices and edges, in bytes."
    spill: Path | None
    "Folder for blocks that are not in memory; None keeps them in the host's memory, beside a device."
    is_automatic: bool = False
    "Whether the budget was chosen from the free memory; false where the user stated it."
    trains: bool = True
    "Whether the model is trained. A model that is only evaluated takes less memory."
    devices: tuple[torch.device, ...] = ()
    "Devices that share the steps, of which each has the budget; empty for the runner's one device."
    is_half: bool = False
    "Whether the budget is half of the stated one; the other half is for the hot tier of a run that trains on mini-batches."

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        run_dir: Path | None,
        *,
        device: torch.device,
        automatic_bytes: int | None = None,
        trains: bool = True,
    ) -> Streaming | None:
        """The streaming that a configuration asks for; None for everything in memory.

        ``automatic_bytes`` is the budget where ``config`` names none. The spill folder is by default ``run_dir``, or the system's folder for
        temporary files; beside a CUDA device blocks stay in the host's memory. Where mini-batches are sampled on the CPU, the budget is half of the
        stated one, whatever the size of the hot tier: another budget would change the last bits of an evaluation.
        """
        on_device = device.type != "cpu"
        is_half = config.memory is not None and config.sample is not None and not on_device
        memory_bytes = config.memory_bytes or automatic_bytes
        if memory_bytes is None:
            return None
        named = None if config.spill is None else Path(config.spill)
        own = None if on_device else run_dir or Path(tempfile.gettempdir())
        return cls(
            memory_bytes=memory_bytes // 2 if is_half else memory_bytes,
            spill=named or own,
            devices=resolve_devices(config.device) if "," in config.device else (),
            is_automatic=config.memory is None,
            trains=trains and config.sample is None,
            is_half=is_half,
        )

    def warn(self, say: Callable[[str], None]) -> None:
        """Say so where the spill folder lies in memory."""
        if self.spill is not None and is_memory(self.spill):
            say(
                f"The spill folder '{self.spill}' lies in memory (tmpfs): spilled blocks take memory beside the budget. "
                "--spill (TrainConfig.spill) names a folder on a disk."
            )


class Streamed(Runner):
    """A model by intervals, over a whole graph or a worker's part. The streamed model is made when it is first needed; all threads share it."""

    streaming: Streaming

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._kept: StreamedModel | None = None
        self._lock = threading.Lock()
        # A graph without features is refused when it is streamed.
        self._features: Features = self.prepared.walked.features  # type: ignore[assignment]

    def streamed(self) -> StreamedModel:
        """The streamed model."""
        with self._lock, ExitStack() as stack:
            if self._kept is not None:
                return self._kept
            with self.team.together("cutting the graph"):
                streamed = self._stream(self.model, trains=self.streaming.trains)
                # Another worker may have failed.
                stack.callback(streamed.close)
                # What trains is planned before its first epoch.
                evaluation = None if self.streaming.trains else self._evaluation(streamed)
            if evaluation is not None:
                self._require_room(evaluation)
            stack.pop_all()
            self._kept = streamed
        return streamed

    def _stream(self, model: nn.Module, *, trains: bool) -> StreamedModel:
        """A model inside the budget."""
        from sagann.plan.residency import BudgetError
        from sagann.runtime.streaming.stream import stream

        require_one_graph(self.model, self.prepared.graph)
        graph, part, budget = self.prepared.graph, self.prepared.part, self.streaming
        devices = ",".join(map(str, budget.devices or [self.device]))
        within: dict[str, Any] = {"spill": budget.spill, "trains": trains, "device": devices}
        try:
            return stream(model, part or graph, budget_bytes=budget.memory_bytes, **within)
        except BudgetError as error:
            needed, has = format_bytes(error.needed_bytes), format_bytes(budget.memory_bytes)
            if budget.is_half:
                raise InputError(
                    f"the memory budget cannot be met: an evaluation has half of it, {has}, and needs at least {needed} "
                    f"(in graph '{graph.name}')",
                    hint="Raise the budget (--memory, TrainConfig.memory), which the training step needs too: with "
                    f"{with_exact(2 * max(error.needed_bytes, error.offered_bytes))}, evaluations are not many times slower.",
                ) from error
            if not budget.is_automatic:
                raise
            raise InputError(
                f"the run does not fit memory, not even streamed: {'an epoch' if trains else 'an evaluation'} "
                f"needs at least {needed}, {has} are left for it (in graph '{graph.name}')",
                hint="Free memory, use a smaller model or a machine with more memory; where you know better, set the "
                "budget by --memory (TrainConfig.memory).",
            ) from error

    def _evaluation(self, streamed: StreamedModel) -> Planned:
        with evaluating(self.model):
            return streamed.plan(self._features)

    def _require_room(self, evaluation: Planned, *, epoch: Planned | None = None) -> None:
        """Refuse a disk without room for the blocks that an evaluation, or an epoch, spills, and for the evaluation's result, of all workers on it."""
        spill, own, num_vertices = self.streaming.spill, self.prepared.vertices, self.prepared.graph.num_vertices
        if spill is None or self.device.type != "cpu":
            return
        from sagann.runtime.blocks.spill import SpillError

        gathers = self.prepared.part is not None and (self.team.is_first or not self._for_first)
        result_bytes = _rows_bytes(evaluation, own.stop - own.start + (num_vertices if gathers else 0))
        needed_bytes = max(evaluation.disk_bytes + result_bytes, 0 if epoch is None else epoch.disk_bytes)
        with self.team.together("finding room to spill"):
            mine = json.dumps([disk_of(spill), needed_bytes, free_disk_bytes(spill), result_bytes])
            told = [json.loads(text) for text in self.team.texts(mine, "finding room to spill")]
            _, needed, free, results = zip(*(each for each in told if each[0] == disk_of(spill)), strict=True)
            if min(free) < sum(needed):
                sharing = f" by the {len(free)} workers on this disk" if len(free) > 1 else ""
                raise SpillError(
                    f"too little room to spill blocks: {with_exact(min(free))} are free, "
                    f"{with_exact(sum(needed))} are needed{sharing}; the results of an evaluation are "
                    f"{with_exact(sum(results))} (in '{spill}')",
                    hint="Free some, spill to another disk, or raise the memory budget.",
                )

    def try_out(self) -> None:
        self.model.train()
        streamed, epoch = self.streamed(), None
        count, device = self.prepared.graph.num_vertices, self.prepared.walked.topology.device
        with self.team.together("planning"):
            if self.streaming.trains:
                epoch = streamed.plan(self._features, folded=self._head.folds)
            evaluation = self._evaluation(streamed)
            for planned in (epoch, evaluation):
                if planned is not None:
                    form = planned.program.forms[planned.program.output]
                    rows = torch.zeros((), dtype=form.dtype).expand(count, *form.shape)
                    self._head.check(rows, count, device)
        self._require_room(evaluation, epoch=epoch)

    def loss(self, loss_of: LossOf, *, timeline: Recorder | None = None) -> Tensor:
        streamed = self.streamed()
        streamed.timeline = timeline
        try:
            return streamed.loss(self._features, loss_of)
        finally:
            streamed.timeline = None

    def why_queued(self) -> str | None:
        self.model.train()
        return self.streamed().why_queued(self._features)

    @property
    def version(self) -> int:  # type: ignore[override]
        return self.streamed().version

    def most_reserved_bytes(self) -> float:
        streamed = self.streamed()
        planned = streamed.plan(self._features, folded=True)
        parameters = sum(each.nbytes for each in self.model.parameters())
        # The budget is of blocks and steps. An evaluation's result and its metrics come on top, and gradients and what the optimizer makes of them.
        rows_bytes = _rows_bytes(planned, self.prepared.graph.num_vertices)
        return streamed.budget_bytes + 3 * (rows_bytes + parameters) + _SEGMENT_BYTES

    def rows_of(self, model: nn.Module) -> Tensor:
        with ExitStack() as stack:
            with self.team.together("planning an embedding"):
                streamed = self._stream(model, trains=False)
                stack.callback(streamed.close)
                evaluation = streamed.plan(self._features)
            self._require_room(evaluation)
            return streamed(self._features).cpu()

    def rows_on_device(self) -> Tensor:
        streamed = self.streamed()
        with unchanged(self.model, self._features):
            rows: Tensor = streamed(self._features)
        return rows

    def _run(self, model: nn.Module) -> Tensor:
        # Labels of a streamed graph lie on the host, and the device may be too small for all rows.
        return self.rows_on_device().to(self.prepared.walked.topology.device)

    def close(self) -> None:
        with self._lock:
            if self._kept is not None:
                # Closed here: the traceback of an error may keep the object from being collected.
                self._kept.close()
            self._kept = None

    def write_profile(self, folder: Path, measured: Recorder, say: Callable[[str], None]) -> None:
        from sagann.runtime.forecasting.forecast import forecast
        from sagann.runtime.forecasting.probe import probe
        from sagann.runtime.forecasting.timeline_files import write_picture, write_trace
        from sagann.storage.picture import can_draw

        graph, spill, budget_bytes = self.prepared.graph, self.streaming.spill, self.streaming.memory_bytes
        timelines: dict[str, Timeline] = {"measured": measured}
        title = f"{type(self.model).__name__} on {graph.name}: budget {format_bytes(budget_bytes)}"
        try:
            planned = self.streamed().plan(self._features, folded=True)
            machine = probe(spill or Path(tempfile.gettempdir()), self.device)
            expected = forecast(planned, machine, on_disk=spill is not None, rehearsal=(self.model, graph))
            timelines = {"planned": expected.timeline, **timelines}
            title += f", P = {planned.plan.num_intervals}"
        except SagannError as error:
            say(f"The planned epoch is not in {PROFILE_FILE}: {error}")
        write_trace(folder / PROFILE_FILE, timelines)
        if can_draw():
            write_picture(folder / PICTURE_FILE, timelines, title=title, budget_bytes=budget_bytes)
        else:
            say(f"{PICTURE_FILE} is not drawn: pip install 'sagann[plots]'")


def _rows_bytes(planned: Planned, num_rows: int) -> int:
    """Bytes of so many rows of a result."""
    form = planned.program.forms[planned.program.output]
    return num_rows * math.prod(form.shape) * form.dtype.itemsize
