"""Options of a command: its own, one for each setting, and those of every command.

Typer reads a function's signature, so :func:`command` writes one: the parameters of the function, then the settings. An
option of a setting that is not given is None, so that the value of a file stands.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sagann.cli.settings import KINDS, Setting
from sagann.cli.signals import Signals

if TYPE_CHECKING:
    from sagann.report.terminal import Terminal

Given = Mapping[str, Any]
"Settings that were given on the command line, by name."


@dataclass(kw_only=True, slots=True)
class Shared:
    """What every command shares with the program."""

    debug: bool = False
    "Whether an error shows its traceback."
    quiet: bool = False
    "Whether progress and notes are left out."
    error: BaseException | None = None
    "The exception that ended the command. Typer turns some exceptions into others, or into an exit code."
    arguments: Sequence[str] = ()
    "The command line, without the name of the program."
    signals: Signals = field(default_factory=Signals)
    "How Ctrl-C and SIGTERM end the program."
    user_files: set[str] = field(default_factory=set)
    "The user's own Python files that this command runs: an exception from one is not a fault of sagann."

    def add_user_file(self, model: str) -> None:
        """Note the file of a model that is named as FILE.py:CLASS; a name of the zoo has none."""
        if ".py:" in model:
            # Python names the file of a frame by its absolute path.
            self.user_files.add(str(Path(model.rpartition(":")[0]).absolute()))

    def terminal(self) -> Terminal:
        """Where the command writes."""
        # Imported here: rich is not needed for a version, or for a word that the shell completes.
        from sagann.report.terminal import Terminal

        return Terminal(quiet=self.quiet)


def option(
    text: str,
    metavar: str | None = None,
    *,
    default: str | None = None,
    panel: str | None = None,
    name: str | None = None,
) -> Any:
    """An option with a value, for the annotation of a command's parameter.

    ``default`` is the default in words, where it is not the parameter's, ``panel`` the title of the group of options, and
    ``name`` the option with dashes, where it is not the parameter's name.
    """
    if default is not None:
        # Typer would put parentheses around the words.
        text = rf"{text} [dim]\[default: {default}][/dim]"
    return typer.Option(*([name] if name else []), help=text, metavar=metavar, rich_help_panel=panel)


def switch(name: str, text: str, *, panel: str | None = None, callback: Any = None) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text, metavar="", rich_help_panel=panel, callback=callback)


def _remember(context: typer.Context, parameter: typer.CallbackParam, value: bool) -> bool:
    """Take note of --debug and --quiet, which stand before the command or after it."""
    shared = context.ensure_object(Shared)
    name = str(parameter.name)
    setattr(shared, name, getattr(shared, name) or value)
    return value


DebugOption = Annotated[bool, switch("--debug", "Show the traceback of an error.", callback=_remember)]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no notes.", metavar="", callback=_remember)
]


def command(*settings: Setting) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Make a function a command, with --quiet, --debug and an option for each of ``settings``.

    The function's parameter ``shared`` gets the Shared, and ``given`` the settings that were given on the command line. A
    parameter that is a dataclass stands for an option for each of its fields.
    """

    def decorate(function: Callable[..., int | None]) -> Callable[..., int | None]:
        own: list[inspect.Parameter] = []
        records: dict[str, Any] = {}
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
            if name in ("shared", "given"):
                continue
            annotation: Any = parameter.annotation
            if isinstance(annotation, type) and is_dataclass(annotation):
                records[name] = annotation
                own += inspect.signature(annotation, eval_str=True).parameters.values()
            else:
                own.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

        def run(context: typer.Context, quiet: bool, debug: bool, **arguments: Any) -> int | None:
            for name, record in records.items():
                arguments[name] = record(**{field.name: arguments.pop(field.name) for field in fields(record)})
            if settings:
                arguments["given"] = _read({setting: arguments.pop(setting.name) for setting in settings})
            shared = context.ensure_object(Shared)
            try:
                return function(shared=shared, **arguments)
            except BaseException as error:
                shared.error = error
                raise

        functools.update_wrapper(run, function)
        # Else inspection would go through to the function.
        del run.__wrapped__  # type: ignore[attr-defined]
        parameters = [
            _parameter("context", typer.Context),
            *own,
            *(_parameter(setting.name, _annotation(setting), None) for setting in settings),
            _parameter("quiet", QuietOption, False),
            _parameter("debug", DebugOption, False),
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _read(values: Mapping[Setting, Any]) -> dict[str, Any]:
    given = {}
    for setting, value in values.items():
        if setting.kind == "options":
            if value:
                given[setting.name] = setting.from_texts(value)
        elif value is not None:
            given[setting.name] = value if setting.kind == "flag" else setting.from_text(value)
    return given


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(setting: Setting) -> Any:
    name, text = setting.option, setting.help.replace("[", r"\[")
    if setting.kind == "flag":
        name = f"{name}/--no-{name.removeprefix('--')}"
    metavar = setting.metavar or KINDS[setting.kind].metavar
    kind: Any = {"flag": bool, "options": list[str]}.get(setting.kind, str)
    return Annotated[kind | None, option(text, metavar, default=setting.default, panel=setting.panel, name=name)]
