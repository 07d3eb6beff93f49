"""Streaming: runs a model inside a memory budget, and knows the folder for blocks that are not in memory."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sagann.byte_size import format_bytes, parse_bytes, with_exact
from sagann.config import TrainConfig
from sagann.errors import InputError
from sagann.free_space import disk_of, free_disk_bytes, is_memory
from sagann.graph.large_arrays import made_by
from sagann.runtime.team import Team

if TYPE_CHECKING:
    from sagann.plan.epoch import Planned
    from sagann.runtime.streaming.streamed import StreamedModel
    from sagann.train.preparation import PreparedGraph


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
        """The streaming that a configuration asks for, of whole epochs if ``trains``, unless it samples mini-batches, and of evaluations; None for
        everything in memory.

        ``automatic_bytes`` is the budget where ``config`` names none. Where ``config`` names no spill folder, it lies in
        ``run_dir``, or is the system's folder for temporary files; beside a CUDA device blocks stay in the host's memory. Where
        ``config`` samples mini-batches on the CPU, the budget is half of the one that it names, whatever the size of the hot tier:
        another budget would change the last bits of an evaluation.
        """
        on_device = device.type != "cpu"
        is_half = config.memory is not None and config.sample is not None and not on_device
        memory_bytes = automatic_bytes
        if config.memory is not None:
            memory_bytes = parse_bytes(config.memory, where="TrainConfig.memory") // (2 if is_half else 1)
        if memory_bytes is None:
            return None
        named = None if config.spill is None else Path(config.spill)
        own = None if on_device else run_dir or Path(tempfile.gettempdir())
        return cls(
            memory_bytes=memory_bytes,
            spill=named or own,
            is_automatic=config.memory is None,
            trains=trains and config.sample is None,
            is_half=is_half,
        )

    def stream(
        self, model: nn.Module, prepared: PreparedGraph, device: torch.device, *, trains: bool
    ) -> StreamedModel:
        """The model over a prepared graph, or over a worker's part of it, inside the budget.

        A budget that cannot be met is an InputError.
        """
        # Imported here: most runs do not stream, and it loads Numba.
        from sagann.plan.residency import BudgetError
        from sagann.runtime.streaming.stream import stream, stream_part

        graph, part = prepared.graph, prepared.part
        within: dict[str, Any] = {
            "budget_bytes": self.memory_bytes,
            "spill": self.spill,
            "trains": trains,
            "device": device,
        }
        try:
            return (
                stream(model, graph, **within) if part is None else stream_part(model, part, part.blocks, **within)
            )
        except BudgetError as error:
            if self.is_half:
                raise InputError(
                    "the memory budget cannot be met: an evaluation has half of it, "
                    f"{format_bytes(self.memory_bytes)}, and needs at least {format_bytes(error.needed_bytes)} "
                    f"(in graph '{graph.name}')",
                    hint="Raise the budget (--memory, TrainConfig.memory), which the training step needs too: with "
                    f"{with_exact(2 * max(error.needed_bytes, error.offered_bytes))}, evaluations are not many times slower.",
                ) from error
            if not self.is_automatic:
                raise
            raise InputError(
                f"the run does not fit memory, not even streamed: {'an epoch' if trains else 'an evaluation'} "
                f"needs at least {format_bytes(error.needed_bytes)}, {format_bytes(self.memory_bytes)} are "
                f"left for it (in graph '{graph.name}')",
                hint="Free memory, use a smaller model or a machine with more memory; where you know better, set the "
                "budget by --memory (TrainConfig.memory).",
            ) from error

    def require_room(
        self,
        evaluation: Planned,
        device: torch.device,
        *,
        epoch: Planned | None = None,
        num_rows: int,
        team: Team,
    ) -> None:
        """Raise SpillError where the disk lacks room for the blocks that an evaluation, or an epoch, spills, and for the evaluation's result.

        Workers whose spill folders lie on one disk of one machine need room for all of them. All workers call this at the same time.

        Args:
            evaluation: what this process spills in an evaluation.
            device: computes.
            epoch: what it spills in an epoch of training; None where no epoch is streamed.
            num_rows: number of rows of the result that this process writes, those that it gathers from other workers included.
            team: the workers.
        """
        if self.spill is None or device.type != "cpu":
            return
        # Imported here: most runs do not stream, and it loads Numba.
        from sagann.runtime.blocks.spill import SpillError

        form = evaluation.program.forms[evaluation.program.output]
        result_bytes = num_rows * math.prod(form.shape) * form.dtype.itemsize
        needed_bytes = max(evaluation.disk_bytes + result_bytes, 0 if epoch is None else epoch.disk_bytes)
        mine = json.dumps([disk_of(self.spill), needed_bytes, free_disk_bytes(self.spill), result_bytes])
        on_disk = [json.loads(text) for text in team.texts(mine, "finding room to spill")]
        on_disk = [each for each in on_disk if each[0] == disk_of(self.spill)]
        needed_bytes, result_bytes = (sum(each[number] for each in on_disk) for number in (1, 3))
        free_bytes = min(each[2] for each in on_disk)
        sharing = f" by the {len(on_disk)} workers on this disk" if len(on_disk) > 1 else ""
        if free_bytes < needed_bytes:
            raise SpillError(
                f"too little room to spill blocks: {with_exact(free_bytes)} are free, "
                f"{with_exact(needed_bytes)} are needed{sharing}; the results of an evaluation are "
                f"{with_exact(result_bytes)} (in '{self.spill}')",
                hint="Free some, spill to another disk, or raise the memory budget.",
            )

    def warn(self, say: Callable[[str], None]) -> None:
        """Say so where the spill folder lies in memory."""
        if self.spill is not None and is_memory(self.spill):
            say(
                f"The spill folder '{self.spill}' lies in memory (tmpfs): spilled blocks take memory beside the budget. "
                "--spill (TrainConfig.spill) names a folder on a disk."
            )

    @contextmanager
    def large_arrays(self) -> Iterator[None]:
        """Inside the block, large arrays of a graph that is opened or prepared lie on the spill folder's disk, if any."""
        if self.spill is None:
            yield
            return
        # Imported here: most runs do not stream.
        from sagann.runtime.blocks.spill import Scratch

        with made_by(Scratch(self.spill)):
            yield
