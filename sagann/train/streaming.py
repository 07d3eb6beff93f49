"""Streaming: the budget that a model is streamed within, and the folder for blocks that are not in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from sagann.byte_size import parse_bytes
from sagann.config import TrainConfig
from sagann.free_space import is_memory
from sagann.graph.large_arrays import made_by


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
