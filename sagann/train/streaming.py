"""Streaming: how a run is kept inside a memory budget, and where it puts what does not fit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from sagann.free_space import is_memory
from sagann.graph.large_arrays import made_by
from sagann.train.config import TrainConfig

OWN_FOLDER = "spill"
"In the run folder, for what is spilled where no other folder is named."


@dataclass(frozen=True, kw_only=True, slots=True)
class Streaming:
    """How a model is run inside a memory budget."""

    memory_bytes: int
    "Budget of an epoch's tensors of vertices and edges, in bytes."
    spill: Path | None
    "Folder for the others; None for the host's memory, beside a device."
    is_own: bool = False
    "Whether the folder is the run's, and goes with it."
    is_automatic: bool = False
    "Whether the budget is what there is, and nobody's wish."
    trains: bool = True
    "Whether the model is trained, and not evaluated only, which takes less."

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
        """What a configuration asks for; None for everything in memory.

        Args:
            config: of the run.
            run_dir: its folder, which blocks are spilled into where no other is named.
            device: what computes, whose memory the budget is of. Beside a CUDA device blocks stay in the host's memory where
                no folder is named.
            automatic_bytes: the budget where the configuration names none.
            trains: whether the model is trained.
        """
        memory_bytes = automatic_bytes if config.memory_bytes is None else config.memory_bytes
        if memory_bytes is None:
            return None
        on_device = device.type != "cpu"
        named = None if config.spill is None else Path(config.spill)
        own = None if run_dir is None or on_device else run_dir / OWN_FOLDER
        return cls(
            memory_bytes=memory_bytes,
            spill=named or own or (None if on_device else Path(tempfile.gettempdir())),
            is_own=named is None and own is not None,
            is_automatic=config.memory_bytes is None,
            trains=trains,
        )

    def warn(self, say: Callable[[str], None]) -> None:
        """Say so where what is spilled would take memory again."""
        if self.spill is not None and is_memory(self.spill):
            say(
                f"The spill folder '{self.spill}' lies in memory (tmpfs): what is spilled takes memory beside the budget. "
                "--spill (TrainConfig.spill) names a folder on a disk."
            )

    @contextmanager
    def large_arrays(self) -> Iterator[None]:
        """Inside the ``with`` block, arrays with a row per edge that preparing a graph gives lie on the spill folder's disk.

        Where there is no folder, they lie in memory.
        """
        if self.spill is None:
            yield
            return
        # Imported here: most runs do not stream.
        from sagann.runtime.blocks.scratch import Scratch

        with made_by(Scratch(self.spill)):
            yield

    def remove(self) -> None:
        """Remove the folder where it is the run's own and empty; where it holds something, it stays."""
        if self.is_own and self.spill is not None:
            with suppress(OSError):
                self.spill.rmdir()


def remove_spilled(run_dir: Path) -> None:
    """Remove what a killed run left in its spill folder, also where the next one does not stream."""
    folder = run_dir / OWN_FOLDER
    if folder.is_dir():
        # Imported here: most runs do not stream, and it loads Numba.
        from sagann.runtime.blocks.spill import remove_stale

        remove_stale(folder)
        with suppress(OSError):
            folder.rmdir()
