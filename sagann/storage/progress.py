"""Progress of long work, told to a callback; the command line shows it as a bar."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Callback, called at most a few times a second from the thread that works."""

    def __call__(self, done: int, total: int | None, unit: str, stage: str) -> None:
        """Take the state of the work.

        Args:
            done: number of units done in this stage.
            total: number of units in this stage; None where it is not known yet.
            unit: "edges" or "vertices".
            stage: "reading edges", "partitioning", "sorting", "writing features".
        """


def silent(done: int, total: int | None, unit: str, stage: str) -> None:
    """Ignore the progress."""
