"""Streaming: how a run is kept inside a memory budget, and where it puts what does not fit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sagann.graph.large_arrays import made_by
from sagann.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Streaming:
    """How a model is run inside a memory budget."""

    memory_bytes: int
    "Of an epoch's tensors of vertices and edges."
    spill: Path
    "Folder for the others."
    is_own: bool = False
    "Whether the folder is the run's, and goes with it."

    @classmethod
    def of(cls, config: TrainConfig, run_dir: Path | None) -> Streaming | None:
        """What a configuration asks for; None for everything in memory.

        Args:
            config: of the run.
            run_dir: its folder, which blocks are spilled into where no other is named.
        """
        if config.memory_bytes is None:
            return None
        if config.spill is not None:
            return cls(memory_bytes=config.memory_bytes, spill=Path(config.spill))
        if run_dir is not None:
            return cls(memory_bytes=config.memory_bytes, spill=run_dir / "spill", is_own=True)
        return cls(memory_bytes=config.memory_bytes, spill=Path(tempfile.gettempdir()))

    @contextmanager
    def large_arrays(self) -> Iterator[None]:
        """Inside the ``with`` block, arrays with a row per edge that preparing a graph gives lie on the spill folder's disk."""
        # Imported here: most runs do not stream.
        from sagann.runtime.scratch import Scratch

        with made_by(Scratch(self.spill)):
            yield

    def remove(self) -> None:
        """Remove the folder where it is the run's own and empty; where it holds something, it stays."""
        if self.is_own:
            with suppress(OSError):
                self.spill.rmdir()
