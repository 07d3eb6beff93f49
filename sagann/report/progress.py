"""Progress bars: of a training run, on the command line and in Python where somebody watches, and of an import."""

from __future__ import annotations

import io
import statistics
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from sagann.byte_size import format_bytes
from sagann.errors import printable
from sagann.import_config import Progress as ImportProgress, silent
from sagann.report.terminal import Terminal

if TYPE_CHECKING:
    from sagann.train.reporter import EpochProgress, EpochRecord, RunInfo, TrainResult

_RECENT_EPOCHS = 20
"""Number of epochs whose median time is shown, so that one slow epoch does not make time and rate jump."""
_LONG_EPOCH_S = 1.0
"Seconds of an epoch after which its batches are shown; those of a short epoch would only flicker."
_WIDE = 100
"Columns of a terminal from which on the monitored metric has room in the line of the loss."
_LINE_EVERY_S = 60.0
"Least seconds between two lines of progress where there is no terminal."

_MOST_VALUES = 4
"Number of values of a list that are shown."
_NOTE_WIDTH = 50
"Most characters in a line of a note below a bar."

_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class ProgressReporter:
    """A progress bar of a run, with epoch time, edges per second, loss and the monitored metric, on standard error.

    Lines below show what else the last epoch's line of metrics.jsonl has, such as counts of the hot tier. A long sampled epoch has a bar of its own below. A terminal gets live bars; a pipe or a file gets the messages, a line a minute, and the last
    state.
    """

    def __init__(self, console: Console | None = None, *, begin: Callable[[], object] = lambda: None) -> None:
        self._console, self._begin = console or Console(stderr=True), begin
        self._progress: Progress | None = None
        self._epochs, self._batches = TaskID(0), TaskID(0)
        self._info: RunInfo | None = None
        self._recent_s: deque[float] = deque(maxlen=_RECENT_EPOCHS)
        self._monitored = ""
        self._logged_s = 0.0

    def on_start(self, info: RunInfo) -> None:
        """Call ``begin``, and show the bar from the first epoch of this call."""
        self._begin()
        self._info = info
        self._recent_s.clear()
        self._monitored = ""
        self._logged_s = time.monotonic()
        if info.first_batch:
            self.on_message(f"Going on after batch {info.first_batch} of epoch {info.first_epoch}.")
        elif info.first_epoch > 1:
            self.on_message(f"Going on after epoch {info.first_epoch - 1}.")
        self._progress = self._bars(
            # A name is no markup.
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            # Where the terminal is narrow the bar gives way, and the numbers stay.
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        )
        name = printable(f"{info.model.rpartition(':')[2]} on {Path(info.data).stem}")
        self._epochs = self._progress.add_task(name, total=info.epochs, completed=info.first_epoch - 1, state="")
        self._batches = self._progress.add_task("", visible=False, state="")
        self._progress.start()

    def _bars(self, *columns: ProgressColumn) -> Progress:
        """Bars that are not drawn yet."""
        return Progress(*columns, console=self._console)

    def on_batch(self, progress: EpochProgress) -> None:
        """Move both bars on within a long epoch."""
        if self._progress is None or progress.train_s < _LONG_EPOCH_S:
            return
        edges, seeds = (_short(count / progress.train_s) for count in (progress.num_edges, progress.num_labelled))
        state = f"{edges} edges/s  {seeds} seeds/s  loss {progress.loss:.4f}"
        name = f"epoch {progress.epoch}"
        self._progress.update(
            self._batches,
            description=name,
            total=progress.num_batches,
            completed=progress.batch,
            state=f"{state}{_note(progress.note)}",
            visible=True,
        )
        # The time that is left is known within the first epoch.
        self._progress.update(self._epochs, completed=progress.epoch - 1 + progress.batch / progress.num_batches)
        self._log(f"{name}  batch {progress.batch}/{progress.num_batches}  {state}")

    def needs_weights(self, epoch: int) -> bool:
        """False: the bar shows numbers alone."""
        return False

    def on_epoch(self, record: EpochRecord) -> None:
        """Move the bar on."""
        if self._progress is None or self._info is None:
            return
        self._recent_s.append(record.epoch_s)
        split, _, metric = self._info.monitor.partition("/")
        # The metric of the last evaluated epoch stays until the next one.
        if metric in record.metrics.get(split, {}):
            gap = "  " if self._console.width >= _WIDE else "\n"
            self._monitored = f"{gap}{split} {metric} {record.metrics[split][metric]:.4f}"
        epoch_s = statistics.median(self._recent_s)
        edges = _short(record.num_edges / epoch_s if epoch_s > 0 else 0.0)
        state = f"{short_seconds(epoch_s)}  {edges} edges/s  loss {record.loss:.4f}{self._monitored}"
        if self._progress.tasks[self._batches].visible:
            # It draws, which would hold up short epochs.
            self._progress.reset(self._batches, visible=False)
        self._progress.update(
            self._epochs,
            completed=record.epoch,
            state=f"{state}{_lines_of(record.extra)}",
        )
        self._log(f"epoch {record.epoch}/{self._info.epochs}  {state}".replace("\n", "  "))

    def _log(self, line: str) -> None:
        """Write a line of progress, where there is no terminal and a minute has passed since the last one."""
        if not self._console.is_terminal and time.monotonic() - self._logged_s >= _LINE_EVERY_S:
            self._logged_s = time.monotonic()
            self.on_message(line)

    def on_end(self, result: TrainResult) -> None:
        """Stop drawing and leave the last state."""
        self.close()

    def on_message(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stop drawing. A caller whose run ended with an error calls it too; a second call does nothing."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


@contextmanager
def import_progress(terminal: Terminal) -> Iterator[ImportProgress]:
    """Inside the ``with`` block, draw a bar for each stage of an import; without a terminal, draw nothing."""
    if terminal.quiet or not terminal.err.is_terminal:
        yield silent
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=terminal.err) as bars:
        stages: dict[str, TaskID] = {}

        def draw(done: int, total: int | None, unit: str, stage: str) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total, unit=unit)
            # The total may be an estimate that is too low.
            bars.update(stages[stage], completed=done, total=None if total is None else max(total, done))

        yield draw


def _lines_of(extra: Mapping[str, Any]) -> str:
    """Lines with what else an epoch's line of metrics.jsonl has: counts of tiers, parts of workers, shares of trainers."""
    parts = []
    for name, value in extra.items():
        values = value if isinstance(value, list | tuple) else [] if value is None else [value]
        shown = [_valued(name, each) for each in values[:_MOST_VALUES]] + ["..."] * (len(values) > _MOST_VALUES)
        parts += [f"{name} {', '.join(shown)}"] if shown else []
    return _note("  ".join(parts))


def _valued(name: str, value: Any) -> str:
    """A value in the unit that its name ends with."""
    if isinstance(value, str):
        return value
    if name.endswith("_s"):
        return short_seconds(value)
    return format_bytes(value) if name.endswith("_bytes") else _short(value)


def _note(text: str) -> str:
    """Lines below the numbers of a bar, short enough for a terminal; empty for no text."""
    return "".join(f"\n{each}" for each in textwrap.wrap(text, _NOTE_WIDTH))


def _short(number: float) -> str:
    """Format a number with three digits and a scale, as '12.3M'."""
    for scale, letter in _SCALES:
        if number >= scale:
            return f"{number / scale:.3g}{letter}" if number < 1000 * scale else f"{number / scale:.0f}{letter}"
    return f"{number:.3g}"


def short_seconds(seconds: float) -> str:
    """Format a time: in seconds from one second on, below in milliseconds."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


_CELL_WIDTH = 120
"Characters of a line in a cell."
_CELL_EVERY_S = 0.25
"Least seconds between two states that a cell shows. Each of them goes to the browser."


def live_progress() -> ProgressReporter | None:
    """The progress bar for a terminal or a notebook; None where nobody would see it move."""
    # Where cells of a notebook run this process, IPython is there, and its shell has a kernel.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return NotebookReporter()
    console, stream = Console(stderr=True, force_jupyter=False), sys.stderr
    # rich takes a pipe for a terminal where FORCE_COLOR is set; a bar in a log is a thousand lines.
    is_seen = stream is not None and not getattr(stream, "closed", False) and stream.isatty()
    return ProgressReporter(console) if is_seen and not console.is_dumb_terminal else None


class NotebookReporter(ProgressReporter):
    """A progress bar of a run in the output of a notebook's cell."""

    def __init__(self) -> None:
        # Messages are lines of the cell.
        super().__init__(Console(force_jupyter=False, force_terminal=False, width=_CELL_WIDTH))

    def _bars(self, *columns: ProgressColumn) -> Progress:
        return _CellBars(*columns)

    def _log(self, line: str) -> None:
        """Write nothing: the cell has the bar."""


class _CellBars(Progress):
    """Bars as a text that is replaced, which needs no widgets in the notebook."""

    def __init__(self, *columns: ProgressColumn) -> None:
        console = Console(file=io.StringIO(), force_jupyter=False, color_system=None, width=_CELL_WIDTH)
        super().__init__(*columns, console=console, auto_refresh=False)
        self._output: Any = None
        self._shown_s = 0.0

    def start(self) -> None:
        """Show the bars in the cell that runs now."""
        from IPython.display import display

        self._output = display(self._content(), raw=True, display_id=True)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a bar, and show the change if the last one was shown some time ago."""
        super().update(task_id, **changes)
        if self._output is not None and time.monotonic() - self._shown_s >= _CELL_EVERY_S:
            self._show()

    def stop(self) -> None:
        """Show the last state, and leave it."""
        if self._output is not None:
            self._show()
            self._output = None

    def _show(self) -> None:
        self._shown_s = time.monotonic()
        self._output.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        with self.console.capture() as captured:
            self.console.print(self.get_renderable())
        return {"text/plain": "\n".join(line.rstrip() for line in captured.get().splitlines())}
