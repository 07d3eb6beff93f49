"""ProgressReporter: a progress bar while training, with epoch time, edges per second, loss and the monitored metric."""

from __future__ import annotations

import statistics
from collections import deque
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from sagann.train.reporter import EpochRecord, RunInfo, TrainResult

_RECENT_EPOCHS = 20
"""The time and the rate shown are medians over so many epochs, so that one slow epoch does not make them jump."""

_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class ProgressReporter:
    """Shows how a run goes; a terminal gets a live bar, a pipe or a file only the messages and the last state.

    Args:
        console: where to write; by default standard error, so that standard output stays for results.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._info: RunInfo | None = None
        self._recent_s: deque[float] = deque(maxlen=_RECENT_EPOCHS)
        self._monitored = ""

    def on_start(self, info: RunInfo) -> None:
        """Show the bar, from the epoch that a resume begins with."""
        self._info = info
        self._recent_s.clear()
        self._monitored = ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            # Where the terminal is narrow the bar gives way, and the numbers stay.
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=self._console,
        )
        name = f"{info.model.rpartition(':')[2]} on {Path(info.data).name}"
        self._task = self._progress.add_task(name, total=info.epochs, completed=info.first_epoch - 1, state="")
        self._progress.start()

    def on_epoch(self, record: EpochRecord) -> None:
        """Move the bar on."""
        if self._progress is None or self._info is None:
            return
        self._recent_s.append(record.epoch_s)
        split, _, metric = self._info.monitor.partition("/")
        # The metric of the last evaluated epoch stays until the next one.
        if metric in record.metrics.get(split, {}):
            self._monitored = f"  {split} {record.metrics[split][metric]:.4f}"
        epoch_s = statistics.median(self._recent_s)
        rate = edges_per_s(self._info, epoch_s)
        state = f"{short_seconds(epoch_s)}  {_short(rate)} edges/s  loss {record.loss:.4f}{self._monitored}"
        self._progress.update(self._task, completed=record.epoch, state=state)

    def on_end(self, result: TrainResult) -> None:
        """Leave the bar as it stands."""
        self.close()

    def on_message(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stop drawing; for the caller whose run ended with an error. May be called again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def edges_per_s(info: RunInfo, epoch_s: float) -> float:
    """Edges that an epoch's forward pass walks, all layers together, per second of the epoch."""
    return info.num_edges * info.num_hops / epoch_s if epoch_s > 0 else 0.0


def _short(number: float) -> str:
    """Three digits and a scale: 12345678 is '12.3M'."""
    for scale, letter in _SCALES:
        if number >= scale:
            return f"{number / scale:.3g}{letter}" if number < 1000 * scale else f"{number / scale:.0f}{letter}"
    return f"{number:.3g}"


def short_seconds(seconds: float) -> str:
    """Seconds from one on, milliseconds below."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
