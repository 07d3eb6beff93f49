"""How long work tells of itself: a callback, which the command line turns into a bar."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called a few times a second at most, from the thread that works."""

    def __call__(self, done: int, total: int | None, unit: str, stage: str) -> None:
        """Tell how far the work is.

        Args:
            done: units done in this stage.
            total: units in this stage; None where nobody knows yet.
            unit: what is counted: "edges", "vertices".
            stage: what is being done: "reading edges", "partitioning", "sorting", "writing features".
        """
        ...


def silent(done: int, total: int | None, unit: str, stage: str) -> None:
    """Tell nobody."""
