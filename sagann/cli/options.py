"""Options of a command, made of settings; and those that every command has.

Typer reads a function's signature, so a command that takes settings gets one written for it: an option per
setting, None where it is not given, so that what a file says can stand.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from sagann.cli.setting import Setting

Given = Mapping[str, Any]
"Settings that were given on the command line, by name; a flag is a bool, a mapping a dict."


@dataclass(kw_only=True, slots=True)
class Shared:
    """What the options that every command has ask for."""

    debug: bool = False
    "Show tracebacks."
    quiet: bool = False
    "No progress and no notes."
    user_files: set[str] = field(default_factory=set)
    "The user's own Python files that this command runs: an exception from there is not our fault."


def remember_debug(context: typer.Context, value: bool) -> bool:
    """Take note of --debug, which stands before the command or after it."""
    shared = context.ensure_object(Shared)
    shared.debug |= value
    return value


def remember_quiet(context: typer.Context, value: bool) -> bool:
    """Take note of --quiet, which stands before the command or after it."""
    shared = context.ensure_object(Shared)
    shared.quiet |= value
    return value


def with_default(help_text: str, default: str) -> str:
    """A help text that ends with the default in words; Typer would put its own parentheses around them."""
    return rf"{help_text} [dim]\[default: {default}][/dim]"


DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", metavar="", callback=remember_debug)
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no notes.", metavar="", callback=remember_quiet)
]


def with_settings(settings: Sequence[Setting]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option per setting; its parameter ``given`` gets those that were given.

    Every command gets --quiet and --debug as well.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        by_name = {setting.name: setting for setting in settings}

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            own = {name: value for name, value in arguments.items() if name not in (*by_name, "quiet", "debug")}
            if "given" in inspect.signature(command).parameters:
                own["given"] = _read(by_name, arguments)
            command(**own)

        own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "given"]
        added = [_parameter(setting.name, _annotation(setting), None) for setting in settings]
        shared = [_parameter("quiet", QuietOption, False), _parameter("debug", DebugOption, False)]
        hints = inspect.get_annotations(command, eval_str=True)
        parameters = [
            parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own
        ] + [*added, *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        # Else inspection would go through to the declaration.
        del run.__wrapped__
        return run

    return decorate


def _read(by_name: Mapping[str, Setting], arguments: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, setting in by_name.items():
        value = arguments[name]
        if value is None or (setting.kind == "options" and not value):
            continue
        if setting.kind == "options":
            given[name] = setting.from_texts(value)
        else:
            given[name] = value if setting.kind == "flag" else setting.from_text(value)
    return given


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(setting: Setting) -> Any:
    metavar = setting.metavar or {"integer": "INTEGER", "number": "NUMBER"}.get(setting.kind, "TEXT")
    is_flag = setting.kind == "flag"
    names = f"{setting.option}/--no-{setting.option.removeprefix('--')}" if is_flag else setting.option
    option = typer.Option(
        names,
        help=setting.help if setting.default is None else with_default(setting.help, setting.default),
        rich_help_panel=setting.panel,
        metavar="" if is_flag else metavar,
        show_default=False,
    )
    kind: Any = {"flag": bool, "options": list[str]}.get(setting.kind, str)
    return Annotated[kind | None, option]
