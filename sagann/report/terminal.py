"""Terminal: results go to stdout, notes and progress to stderr, so that a pipe gets results only; and tables of facts."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from sagann.errors import InputError, printable

# Without a terminal nothing says how wide lines may be. Every table of this project is narrower.
_PIPE_WIDTH = 200


class Terminal:
    """Where a command writes. ``quiet`` leaves out notes and progress.

    Colour and progress appear on a terminal only; NO_COLOR is respected.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.out = _console(stderr=False)
        self.err = _console(stderr=True, quiet=quiet)

    def show(self, result: RenderableType) -> None:
        """Write a result: a table, or a text that is never wrapped. An InputError says that the system refuses to write it."""
        try:
            if isinstance(result, str):
                # A path that is wrapped cannot be copied.
                self.out.print(Text(result), soft_wrap=True)
            else:
                self.out.print(result)
        except BrokenPipeError:
            # The reader has closed the pipe, as head does.
            raise
        except OSError as error:
            raise InputError(
                f"the result cannot be shown: {error.strerror or str(error)} (in standard output)",
                hint="Send it to a place with room. Files that the command writes are complete.",
            ) from error

    def say(self, text: str) -> None:
        """Write a note, unless quiet."""
        self.err.print(Text(text), soft_wrap=True)


def facts_table(title: str, *, num_columns: int = 2) -> Table:
    """An empty table without a header, whose rows begin with the name of a fact.

    Values that do not fit are wrapped, never cut off, because people copy them into reports.
    """
    columns = [Column(overflow="fold") for _ in range(num_columns)]
    return Table(*columns, title=title, title_justify="left", show_header=False)


def _console(*, stderr: bool, quiet: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    console = Console(stderr=stderr, quiet=quiet, width=width, highlight=False, markup=False, emoji=False)
    console.push_render_hook(_PrintableHook())
    return console


class _PrintableHook(RenderHook):
    """Names in datasets may have codes that a terminal obeys: they are written as escapes."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(each) for each in renderables]


class _Printable:
    """A renderable with an escape for each character that is not shown; Rich's own codes are kept."""

    def __init__(self, content: ConsoleRenderable) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._content, options):
            lines = text if control else "\n".join(map(printable, text.split("\n")))
            yield Segment(lines, style, control)
