"""Live progress: the bar of a run in Python where somebody watches, in a terminal or in the cell of a notebook.

The same bar as that of the command line. A pipe or a log gets nothing, unless a reporter is asked for it.
"""

from __future__ import annotations

import io
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

from sagann.report.progress import ProgressReporter

_CELL_WIDTH = 120
"Characters of a line in a cell."
_CELL_EVERY_S = 0.25
"Least seconds between two states that a cell shows. Each of them goes to the browser."


def live_progress() -> ProgressReporter | None:
    """The progress bar for a terminal or a notebook; None where nobody would see it move."""
    if _in_notebook():
        return NotebookReporter()
    console = Console(stderr=True, force_jupyter=False)
    # rich takes a pipe for a terminal where FORCE_COLOR is set; a bar in a log is a thousand lines.
    return ProgressReporter(console) if _is_terminal(sys.stderr) and not console.is_dumb_terminal else None


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


def _in_notebook() -> bool:
    """Whether cells of a notebook run this process. Where they do, IPython is there, and its shell has a kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _is_terminal(stream: Any) -> bool:
    """Whether a stream writes to a terminal; False for none, and for one that is closed."""
    return stream is not None and not getattr(stream, "closed", False) and stream.isatty()
