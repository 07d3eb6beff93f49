"""Terminal: results to stdout, everything said on the way to stderr, so that a pipe gets results only."""

from __future__ import annotations

import errno
import sys

from rich.console import Console, RenderableType
from rich.text import Text

from sagann.errors import InputError

# Wide enough for any table of ours: without a terminal nothing says how wide lines may be.
_PIPE_WIDTH = 200


class Terminal:
    """Where a command writes.

    Colour and progress appear on a terminal only; NO_COLOR is respected.

    Args:
        quiet: drop the notes.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.out = _console(stderr=False)
        self.err = _console(stderr=True)

    @property
    def animated(self) -> bool:
        """Whether progress may be drawn and redrawn."""
        return self.err.is_terminal and not self.quiet

    def show(self, result: RenderableType) -> None:
        """Write a result: a table, or a text that is never wrapped.

        Raises:
            InputError: standard output does not take it.
        """
        try:
            if isinstance(result, str):
                # A wrapped path cannot be copied.
                self.out.print(Text(result), soft_wrap=True)
            else:
                self.out.print(result)
        except OSError as error:
            if error.errno == errno.EPIPE:
                # The reader has what it wants, as head has.
                raise
            raise InputError(
                "the result cannot be shown",
                value=error.strerror or str(error),
                where="standard output",
                fix="Send it to where there is room. What the command saves is saved: a run, a dataset, a file.",
            ) from error

    def say(self, text: str) -> None:
        """Write a note, unless quiet."""
        if not self.quiet:
            self.err.print(Text(text), soft_wrap=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)
