"""Errors a person can act on: what failed, the value and the limit, which object, what to do.

Everything sagann refuses on purpose is a :class:`SagannError`; the command line turns it into exit code 2
and one message. Any other exception is our own fault (exit code 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from sagann.did_you_mean import did_you_mean


class SagannError(Exception):
    """An error in two parts.

    Args:
        message: what is wrong, with the value found, the limit where there is one, and the object concerned (a file and row, a layer,
            an argument); without a full stop.
        hint: what to do about it, as a sentence.

    Example:
        >>> raise InputError("batch is empty: 0 seeds, at least 1 is needed (in seeds)", hint="Pass seeds.")
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: batch is empty: 0 seeds, at least 1 is needed (in seeds). Pass seeds.
    """

    def __init__(self, message: str, *, hint: str) -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}. {hint}")

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.message, hint=self.hint), ()


class InputError(SagannError, ValueError):
    """An argument, a graph or a configuration that cannot be used as it is."""


class DatasetError(InputError):
    """A file or folder with data that is missing, foreign, truncated or wrong; names the file and the row."""


class LayerError(SagannError, TypeError):
    """A layer whose functions break the programming model; names the operator and the user's line."""


class CheckpointError(InputError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class WorkerError(SagannError, RuntimeError):
    """A worker that does not answer; names its rank, and what the others were doing."""


class TrainerError(SagannError, RuntimeError):
    """A trainer in a process of its own that is gone, or that has failed; names it, the iteration, and what it did."""


class MissingDependencyError(SagannError, ImportError):
    """A feature that needs a package of one of the extras."""

    def __init__(self, package: str, *, extra: str, feature: str) -> None:
        self._package, self._extra, self._feature = package, extra, feature
        super().__init__(
            f"package not installed: {package} cannot be imported (in {feature})",
            hint=f"Install it with: pip install 'sagann[{extra}]'.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self._package, extra=self._extra, feature=self._feature), ()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM came; the command line raises it.

    Where a KeyboardInterrupt itself leaves an ``exec`` of a string, Python ends by SIGINT, whatever the exit code.
    """


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception is Ctrl-C or SIGTERM. A class that a user's model derives from KeyboardInterrupt is not."""
    return type(error) in (KeyboardInterrupt, Interrupted)


def first_line(error: BaseException) -> str:
    """The first line of an error's text that is not empty; its class where it has no text."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def in_one_line(error: BaseException) -> str:
    """The class of an error and the first line of its text."""
    kind = type(error).__name__
    return f"{kind}: {first_line(error)}" if str(error).strip() else kind


def printable(line: str) -> str:
    """The line with an escape for each character that is not shown.

    Names of files, and texts of foreign ones, may have line breaks, codes that a terminal obeys, and bytes that are not UTF-8.

    Example:
        >>> printable("a\\x1b[2Jb")
        'a\\\\x1b[2Jb'
    """
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def listed(names: Sequence[str], most: int = 10) -> str:
    """At most so many names, and the number of the others.

    Example:
        >>> listed(["a", "b", "c"], 2)
        'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shown(value: object, most: int = 80) -> str:
    """The value as Python writes it, in at most so many characters.

    Example:
        >>> shown("a" * 100, 12), shown(1 << 100_000)
        ("'aaaaaaaa...", 'a value with an integer of thousands of digits')
    """
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write out such integers.
        return "a value with an integer of thousands of digits"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def require_type(
    value: object, expected: type | tuple[type, ...], *, where: str, hint: str, optional: bool = False
) -> None:
    """Refuse an argument of a foreign type; a bool is no int. ``hint`` says in a sentence what to pass instead.

    Example:
        >>> require_type([1, 2], dict, where="Graph.splits", hint="Pass a mapping.")
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: argument has the wrong type: a list, expected dict (in Graph.splits). Pass a mapping.
    """
    kinds = expected if isinstance(expected, tuple) else (expected,)
    fits = isinstance(value, kinds) and not (isinstance(value, bool) and int in kinds)
    if fits or (optional and value is None):
        return
    found = "None" if value is None else f"a {type(value).__name__}"
    names = " or ".join(kind.__name__ for kind in kinds) + (" or None" if optional else "")
    raise InputError(f"argument has the wrong type: {found}, expected {names} (in {where})", hint=hint)


def require_choice(value: object, choices: Iterable[object], *, what: str, where: str) -> None:
    """Refuse a value that is none of the choices.

    Example:
        >>> require_choice("rows", ["column", "row"], what="unknown order", where="order")
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: unknown order: 'rows', expected one of column, row (in order). Did you mean 'row'? Choose one of these.
    """
    known = list(choices)
    if value not in known:
        names = ", ".join(map(str, known))
        hint = f"{did_you_mean(value, known)}Choose one of these."
        raise InputError(f"{what}: {shown(value)}, expected one of {names} (in {where})", hint=hint)
