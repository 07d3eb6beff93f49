"""Terminal: results go to stdout, notes and progress to stderr, so that a pipe gets results only; and tables of facts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment
from rich.table import Table
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


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, num_texts: int = 1) -> Table:
    """A table with a header, whose first columns have texts, and the others numbers."""
    found = Table(title=title, title_justify="left")
    for position, name in enumerate(columns):
        found.add_column(name, justify="left" if position < num_texts else "right")
    for row in rows:
        found.add_row(*row)
    return found


def facts_table(title: str, rows: Iterable[Sequence[str | Text]]) -> Table:
    """A table without a header, whose rows begin with the name of a fact. Values are wrapped, never cut off: people copy them into reports."""
    found = Table(title=title, title_justify="left", show_header=False)
    for row in rows:
        found.add_row(*row)
    for column in found.columns:
        column.overflow = "fold"
    return found


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
