"""Options of a command: its own, one for each setting of a run, and those of every command.

Typer reads a function's signature, so :func:`command` writes one: the parameters of the function, then the settings, which are fields of
:mod:`sagann.config`. An option of a setting that is not given is None, so that the value of a file stands.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sagann.cli.signals import Signals
from sagann.errors import InputError, nearest, shown
from sagann.options import ADVANCED, Arguments, Option, T, options_of
from sagann.ranges import RANGES, Range

if TYPE_CHECKING:
    from sagann.report.terminal import Terminal

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"The base of every error of usage. Its module differs between versions of Typer."
_Function = TypeVar("_Function", bound=Callable[..., Any])
Given = Mapping[str, Any]
"Settings that were given on the command line, by name."


class _PlainHelp:
    """A command or group whose help shows no type of a value where an option of Typer's own takes none."""

    def get_params(self, context: Any) -> Any:
        """The options, among them Typer's."""
        found = super().get_params(context)  # type: ignore[misc]
        for each in found:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return found


class _Command(_PlainHelp, typer.core.TyperCommand):
    pass


class _Group(_PlainHelp, typer.core.TyperGroup):
    def resolve_command(self, context: Any, arguments: Any) -> Any:
        """The command that the arguments name; an unknown one is refused with the nearest, of this group or of one in it."""
        try:
            return super().resolve_command(context, arguments)
        except UsageError as error:
            groups = self.commands.items()
            known = {each: f"{name} {each}" for name, group in groups for each in getattr(group, "commands", ())}
            near = nearest(arguments[0], [*self.commands, *known])
            error.message += f" Did you mean '{known.get(near, near)}'?" if near else ""  # type: ignore[attr-defined]
            raise


class App(typer.Typer):
    """Commands of the program, or a group of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, suggest_commands=False, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
        """Add the decorated function as a command."""
        return super().command(name, cls=_Command, **options)


@dataclass(kw_only=True, slots=True)
class Shared:
    """What every command shares with the program."""

    debug: bool = False
    "Whether an error shows its traceback."
    quiet: bool = False
    "Whether progress and notes are left out."
    threads: int | None = None
    "Number of threads that compute; None for as many as there are cores, or as the environment says."
    error: BaseException | None = None
    "The exception that ended the command. Typer turns some exceptions into others, or into an exit code."
    arguments: Sequence[str] = ()
    "The command line, without the name of the program."
    signals: Signals = field(default_factory=Signals)
    "How Ctrl-C and SIGTERM end the program."
    is_program: bool = False
    "Whether the process runs this one command and ends, unlike one that calls commands beside other work."

    @contextmanager
    def loading(self, *hidden: str) -> Iterator[None]:
        """Load libraries in the block without looking for garbage, and look for none later among all objects that exist then.

        PyTorch and Numba make half a million objects, which stay until the end: looking at them takes a third of the time of a short command.
        Code that can do without a ``hidden`` module does not find it.
        """
        if not self.is_program:
            yield
            return
        unloaded = [name for name in hidden if name not in sys.modules]
        # Python refuses to import what has None here.
        sys.modules.update(dict.fromkeys(unloaded))  # type: ignore[arg-type]
        gc.disable()
        try:
            yield
        finally:
            for name in unloaded:
                del sys.modules[name]
            gc.freeze()
            gc.enable()

    def load_kernels(self) -> None:
        """Load what Numba loads for its first function, without SciPy's linear algebra: Numba asks for it, and imports it again where it is used."""
        # A release that cannot do without it is loaded whole by whoever needs it first.
        with self.loading("scipy.linalg"), suppress(ImportError):
            importlib.import_module("numba.np.arraymath")

    def load_compiler(self) -> None:
        """Load PyTorch's compiler, which its optimizers and its traces would load; without tensors that are sharded among devices, which take a third
        of its modules and no command uses, and without Triton, where no device runs its kernels."""
        with self.loading():
            import torch

        unused = [] if torch.accelerator.is_available() else ["triton"]
        # The compiler asks once what there is, and keeps the answer.
        with self.loading("torch.distributed.fsdp", "torch.distributed.tensor", *unused), suppress(ImportError):
            importlib.import_module("torch._dynamo")

    def files_of_user(self) -> set[str]:
        """Absolute paths of the files of models that were loaded, and of what they have imported beside them."""
        module = sys.modules.get("sagann.nn.user_model")
        return set() if module is None else module.files_of_models()

    def use_threads(self) -> None:
        """Have as many threads compute as --threads says."""
        if self.threads is not None:
            # Imported here: most commands leave the number as it is, and some need no PyTorch. Numba is given PyTorch's number.
            with self.loading():
                import torch

            torch.set_num_threads(self.threads)

    def terminal(self) -> Terminal:
        """Where the command writes."""
        from sagann.report.terminal import Terminal

        return Terminal(quiet=self.quiet)


def option(
    text: str,
    metavar: str | None = None,
    *,
    default: str | None = None,
    panel: str | None = None,
    name: str | None = None,
    hidden: bool = False,
    within: Range | None = None,
) -> Any:
    """An option with a value, for the annotation of a command's parameter.

    ``default`` is the default in words, where it is not the parameter's, and ``hidden`` leaves the option to --help-all.
    """
    if default is not None:
        # Typer would put parentheses around the words.
        text = rf"{text} [dim]\[default: {default}][/dim]"
    low, high = (None, None) if within is None else (within.low, within.high)
    names = [name] if name else []
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, hidden=hidden, min=low, max=high)


def switch(name: str, text: str, *, callback: Any = None) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text, metavar="", callback=callback)


def _remember(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Take note of --debug, --quiet and --threads, which stand before the command or after it."""
    shared = context.ensure_object(Shared)
    name = str(parameter.name)
    setattr(shared, name, value or getattr(shared, name))
    return value


def _show_all(context: typer.Context, value: bool) -> None:
    """Show the help of a command with the parameters that --help leaves out."""
    if value:
        for each in context.command.params:
            each.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


HelpAllOption = Annotated[
    bool,
    typer.Option(
        "--help-all", help="Show advanced options too, and exit.", metavar="", is_eager=True, callback=_show_all
    ),
]
DebugOption = Annotated[bool, switch("--debug", "Show the traceback of an error.", callback=_remember)]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Suppress progress and notes.", metavar="", callback=_remember)
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        help=r"Number of computing threads. Only the last bits of results depend on it. [dim]\[default: one for each core][/dim]",
        metavar="INTEGER",
        min=RANGES["threads"].low,
        max=RANGES["threads"].high,
        show_default=False,
        callback=_remember,
    ),
]


def command(
    *settings: Option, first: str | None = None
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Make a function a command, with --quiet, --debug, --threads and an option for each of ``settings``.

    The function's parameter ``shared`` gets the Shared, and ``given`` the settings that were given on the command line. ``first`` names an
    option whose value may also stand without the option's name: ``sagann train demo``. Where a setting is ADVANCED, there is --help-all.
    """

    def decorate(function: Callable[..., int | None]) -> Callable[..., int | None]:
        def run(
            context: typer.Context,
            quiet: bool,
            debug: bool,
            threads: int | None,
            help_all: bool = False,
            first_argument: str | None = None,
            **arguments: Any,
        ) -> int | None:
            if first is not None and first_argument is not None:
                if arguments[first] is not None:
                    raise InputError(
                        f"{first} is given twice: {shown(first_argument)} and --{first} {shown(arguments[first])} (in the command line)",
                        hint=f"Leave one of them out; other options need their names, as --{first}.",
                    )
                arguments[first] = first_argument
            if settings:
                values = [(setting, arguments.pop(setting.name)) for setting in settings]
                arguments["given"] = {
                    setting.name: setting.from_command_line(value)
                    for setting, value in values
                    if value not in (None, [])
                }
            shared = context.ensure_object(Shared)
            try:
                shared.use_threads()
                return function(shared=shared, **arguments)
            except BaseException as error:
                shared.error = error
                raise

        functools.update_wrapper(run, function)
        # Else inspection would go through to the function.
        del run.__wrapped__  # type: ignore[attr-defined]
        parameters = {"context": inspect.Parameter("context", _BY_NAME, annotation=typer.Context)}
        if first is not None:
            # The line of usage has it.
            argument = typer.Argument(metavar=first.upper(), show_default=False, hidden=True)
            parameters["first_argument"] = _parameter("first_argument", Annotated[str | None, argument])
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
            if name not in ("shared", "given"):
                parameters[name] = parameter.replace(kind=_BY_NAME)
        parameters |= {setting.name: _parameter(setting.name, _annotation(setting)) for setting in settings}
        parameters["quiet"] = _parameter("quiet", QuietOption, False)
        parameters["debug"] = _parameter("debug", DebugOption, False)
        parameters["threads"] = _parameter("threads", ThreadsOption)
        if any(ADVANCED in each.marks for each in settings):
            parameters["help_all"] = _parameter("help_all", HelpAllOption, False)
        run.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
        run.__annotations__ = {name: each.annotation for name, each in parameters.items()}
        return run

    return decorate


def options_from(kind: Callable[..., T], given: Given, **more: Any) -> T:
    """A dataclass of options, of those that were given on the command line."""
    return kind(**{name: given[name] for name in given if name in options_of(kind)}, **more)


_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, _BY_NAME, default=default, annotation=annotation)


def _annotation(setting: Option) -> Any:
    name = setting.flag
    kind: Any = list[str] if setting.type == Arguments else str
    if setting.type is bool:
        name, kind = f"{name}/--no-{name.removeprefix('--')}", bool
    text, hidden = setting.help.replace("[", r"\["), ADVANCED in setting.marks
    said = setting.default_text or None
    return Annotated[
        kind | None, option(text, setting.metavar, default=said, panel=setting.panel, name=name, hidden=hidden)
    ]
