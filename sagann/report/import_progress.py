"""Progress of an import: a bar per stage, on a terminal only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sagann.report.terminal import Terminal
from sagann.storage import Progress as ImportProgress
from sagann.storage.progress import silent


@contextmanager
def import_progress(terminal: Terminal) -> Iterator[ImportProgress]:
    """Draw the progress of an import while the block runs; nothing where nobody sees it."""
    if not terminal.animated:
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
            # A total that was an estimate must not be passed.
            bars.update(stages[stage], completed=done, total=None if total is None else max(total, done))

        yield draw
