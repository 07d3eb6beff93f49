"""The program ``sagann``: its commands, and the one place where an exception becomes a message and an exit code."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from sagann import __version__
from sagann.cli import commands, data
from sagann.cli.failure import BAD_INPUT, INTERRUPTED, TERMINATED, failure_of, line_of_user
from sagann.cli.options import App, DebugOption, QuietOption, Shared, ThreadsOption, UsageError
from sagann.cli.signals import Signals
from sagann.errors import nearest
from sagann.processes import end_quickly
from sagann.ranges import require_integer

app = App(
    name="sagann",
    help="Train graph neural networks on graphs larger than the memory of the device that computes.",
    epilog="Start with: sagann train --data demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"sagann {__version__}")
        raise typer.Exit


@app.callback()
def _sagann(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", metavar="", callback=_show_version, is_eager=True)
    ] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    threads: ThreadsOption = None,
) -> None:
    pass


for _each in (commands.train, commands.plan, commands.evaluate, commands.predict, commands.embed):
    app.command()(_each)
app.add_typer(data.app, name="data")
app.command()(commands.doctor)
app.command()(commands.machine)


def run(signals: Signals) -> NoReturn:
    """Run the command that the process was started with, and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As for stderr: a path that the terminal cannot show must not fail a finished command.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = main(sys.argv[1:], Shared(arguments=sys.argv[1:], signals=signals, is_program=True))
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and code == 0:
            code = _fail(error, Shared())
        # Else Python would report the same error again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    end_quickly()
    sys.exit(code)


def main(arguments: Sequence[str], shared: Shared | None = None) -> int:
    """Run one command, and return the exit code (see sagann.cli.failure)."""
    shared = shared or Shared(arguments=arguments)
    code = _run_command(arguments, shared)
    return TERMINATED if code and shared.signals.is_terminated else code


def _run_command(arguments: Sequence[str], shared: Shared) -> int:
    command = typer.main.get_command(app)
    code = None
    try:
        # Numba cannot be imported with another number; it ignores what is no integer.
        number = os.environ.get("NUMBA_NUM_THREADS", "").strip()
        if number.removeprefix("-").isdecimal():
            require_integer(int(number), "threads", where="the environment's NUMBA_NUM_THREADS")
        code = command.main(list(arguments), prog_name="sagann", standalone_mode=False, obj=shared)
    except BaseException as error:  # noqa: BLE001 - every failure ends here, and a user's model may raise anything
        if shared.error is None:
            if isinstance(error, UsageError):
                _advise(error)
                error.show()  # type: ignore[attr-defined]
                return BAD_INPUT
            shared.error = error
    if shared.error is not None:
        return _fail(shared.error, shared)
    return code if isinstance(code, int) else 0


def _advise(error: Any) -> None:
    """Have an error of usage offer the nearest option, or say how options are written."""
    if hasattr(error, "possibilities"):
        names = {
            name: each.metavar for each in error.ctx.command.params for name in (*each.opts, *each.secondary_opts)
        }
        near = nearest(error.option_name, names)
        # An argument has no dashes.
        error.possibilities = [near if near[0] == "-" else f"{names[near]} without a name"] if near else None
    elif error.message.startswith("Got unexpected extra argument"):
        error.message += ". Write the name of an option before its value, and a switch without one, as --undirected or --no-undirected."


def _fail(error: BaseException, shared: Shared) -> int:
    # Libraries turn an interrupt into other errors.
    error = shared.signals.raised or error
    if not line_of_user(error, shared.files_of_user()):
        # Outside of commands, Typer turns a closed pipe into SystemExit, and Ctrl-C into Abort.
        if isinstance(error, BrokenPipeError) or (
            isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
        ):
            return 0
        if isinstance(error, typer.Abort):
            return INTERRUPTED
        if isinstance(error, SystemExit):
            # Typer exits so after it has completed a word for the shell.
            return error.code if isinstance(error.code, int) else BAD_INPUT
    if shared.debug:
        traceback.print_exception(error)
    failure = failure_of(error, user_files=shared.files_of_user(), arguments=shared.arguments)
    head, _, rest = failure.text.partition(":")
    # Typer leaves the colour out where stderr is no terminal.
    coloured = head if "NO_COLOR" in os.environ else typer.style(head, fg=typer.colors.RED, bold=True)
    typer.echo(f"{coloured}:{rest}", err=True)
    return failure.code
