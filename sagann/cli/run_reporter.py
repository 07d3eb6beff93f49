"""RunReporter: what ``sagann train`` does as a run goes: draw its progress, and save its settings once it began."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sagann.report.progress import ProgressReporter
from sagann.report.terminal import Terminal
from sagann.train import EpochRecord, RunInfo, TrainResult


class RunReporter:
    """Is told how a run goes.

    Args:
        terminal: where to write.
        on_begin: called when the run was accepted: it is new, or the one that is to be resumed.
    """

    def __init__(self, terminal: Terminal, on_begin: Callable[[], None]) -> None:
        self._terminal = terminal
        self._on_begin = on_begin
        self._progress = None if terminal.quiet else ProgressReporter(terminal.err)

    def on_start(self, info: RunInfo) -> None:
        """Save the settings, and show the bar under names without their paths, for which there is no room."""
        self._on_begin()
        if self._progress is not None:
            model = info.model.rpartition(":")[2]
            self._progress.on_start(replace(info, model=model, data=Path(info.data).stem))

    def on_epoch(self, record: EpochRecord) -> None:
        """Move the bar on."""
        if self._progress is not None:
            self._progress.on_epoch(record)

    def on_end(self, result: TrainResult) -> None:
        """Leave the bar as it stands."""
        self.close()

    def on_message(self, text: str) -> None:
        """Say ``text``."""
        self._terminal.say(text)

    def close(self) -> None:
        """Stop drawing, also after an error; may be called again."""
        if self._progress is not None:
            self._progress.close()
