"""Options: the fields of a frozen dataclass, with all that is known of them in their annotations.

An annotation has the type, the values that the field may have (:class:`Values`), what it has no effect without (:class:`Needs`), whether a
resumed run may change it (:data:`FREE`), and how ``--help`` shows it (:class:`Panel`, :class:`Metavar`, :data:`ADVANCED`); the text after the
field is its help.
Whoever checks, reads or writes options asks :func:`options_of`.
"""

from __future__ import annotations

import ast
import math
import numbers
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache, reduce, wraps
from itertools import pairwise
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

from sagann.byte_size import format_bytes, parse_bytes
from sagann.constructor_options import require_options
from sagann.errors import InputError, closest, did_you_mean, shown
from sagann.ranges import Range

T = TypeVar("T")
NONE, BALANCED = "none", "balanced"
"How files and the command line unset an option that may be None; weights by which all classes weigh the same."
Weights: TypeAlias = str | tuple[float, ...]
"Type of an option that is 'balanced', or a number for each class."
Arguments: TypeAlias = Mapping[str, Any]
"Type of an option that holds arguments of a constructor."
Column: TypeAlias = str | int
"Type of an option that names a column of a table, or states its position."


class Panel(str):
    """Title of the group of options in which ``--help`` shows an option."""


class Metavar(str):
    """Placeholder of the value in ``--help``."""


class Mark:
    """Type of marks without a value."""


FREE, ADVANCED, BYTES = Mark(), Mark(), Mark()
"""Mark an option that a resumed run may change, one that ``--help`` leaves to ``--help-all``, and a number of bytes, which the command line takes
as '256MiB'."""


class Needs(NamedTuple):
    """Marks an option that has no effect where none of some other options is set; ``example`` sets the first one."""

    names: tuple[str, ...]
    example: str

    def unset(self, values: Mapping[str, Any]) -> bool:
        """Whether none of the other options is set."""
        return all(values.get(name) is None for name in self.names)


class Values(NamedTuple):
    """The values, or the items of a list, that ``fit``; in words, and as the placeholder in ``--help``, if not that of the type."""

    fit: Callable[[Any], bool]
    text: str
    metavar: str = ""


def integers(low: int, high: int) -> Values:
    """Integers from ``low`` to ``high``."""
    return Values(Range(low, high).__contains__, str(Range(low, high)))


def at_least(low: float) -> Values:
    """Finite numbers from ``low``."""
    return Values(lambda value: value >= low, f"a finite number of at least {low:g}")


def above(low: float) -> Values:
    """Finite numbers beyond ``low``."""
    return Values(lambda value: value > low, f"a finite number above {low:g}")


def one_of(*names: str) -> Values:
    """Texts that are one of these."""
    return Values(names.__contains__, f"one of {', '.join(names)}", "|".join(names))


class _Type(NamedTuple):
    """The values of a type in words, their placeholder, and how an item is checked, and read from a text."""

    text: str
    metavar: str
    item: Callable[[Any], Any]
    read: Callable[[Any], Any] = str


def _integer(value: Any) -> int:
    # Integers of NumPy are integers as well.
    return int(_of(numbers.Integral)(value))


def _number(value: Any) -> float:
    if not math.isfinite(_of(int | float)(value)):
        raise TypeError
    return float(value)


def _column(text: str) -> Column:
    # A position has few digits.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _of(kind: Any) -> Callable[[Any], Any]:
    def item(value: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError
        return value

    return item


_TYPES: dict[Any, _Type] = {
    int: _Type("an integer", "INTEGER", _integer, int),
    float: _Type("a finite number", "NUMBER", _number, float),
    bool: _Type("True or False", "", _of(bool), bool),
    str: _Type("a string", "TEXT", _of(str)),
    tuple[int, ...]: _Type("a comma-separated list of integers such as (25, 10)", "N,N,...", _integer, int),
    Weights: _Type(
        f"'{BALANCED}', or a list of numbers, one for each class", f"{BALANCED}|W,W,...", _number, float
    ),
    Column: _Type("a column's name or position", "NAME|POSITION", _of(str | int), _column),
    Arguments: _Type("a mapping of option to value", "KEY=VALUE", _of(Mapping)),
}
_LISTS = (tuple[int, ...], Weights)


class Option(NamedTuple):
    """An option, as the annotation of its field describes it."""

    owner: Callable[..., Any]
    "The dataclass, or the function, that takes it."
    name: str
    "Name of the field, and of the key in a file."
    type: Any
    "Type of the values, apart from None."
    optional: bool
    "Whether the value may be None."
    default: Any
    "The default; MISSING where a value must be given."
    marks: tuple[Any, ...]
    "What else the annotation says: of each kind, the first mark counts."

    def mark(self, kind: type) -> Any:
        """The mark of a kind."""
        return next((mark for mark in self.marks if isinstance(mark, kind)), None)

    @property
    def section(self) -> str:
        """Section of a file with settings."""
        return _SECTIONS[self.owner.__name__][0]

    @property
    def panel(self) -> str:
        """Title of the group of options in ``--help``."""
        return self.mark(Panel) or _SECTIONS[self.owner.__name__][1]

    @property
    def flag(self) -> str:
        """The option on the command line, as '--batch-size'; for a mapping in the singular."""
        name = self.name.removesuffix("s") if self.type == Arguments else self.name.removesuffix("_bytes")
        return "--" + name.replace("_", "-")

    @property
    def metavar(self) -> str:
        """Placeholder of the value in ``--help``; empty for a switch."""
        values, of_type = self.mark(Values), "SIZE" if BYTES in self.marks else _TYPES[self.type].metavar
        return self.mark(Metavar) or (values.metavar if values else "") or of_type

    @property
    def default_text(self) -> str:
        """The default as the command line writes it; empty where there is none, or an empty mapping."""
        if self.default is MISSING or self.type == Arguments:
            return ""
        if self.default is None:
            return NONE
        if self.type is bool:
            return "yes" if self.default else "no"
        return format_bytes(self.default) if BYTES in self.marks else str(self.default)

    @property
    def help(self) -> str:
        """The text after the field, without markup, and with None as the command line writes it."""
        text = " ".join(
            _texts(str(sys.modules[self.owner.__module__].__file__))[self.owner.__name__, self.name].split()
        )
        return text.replace("``", "").replace("None", f"'{NONE}'")

    def from_command_line(self, given: Any) -> Any:
        """The value that a text, the KEY=VALUE pairs of a mapping, or a switch stands for.

        A text that stands for no value stays as it is, and is refused with the values that there are. The value of a pair is written as in TOML.
        """
        if self.type == Arguments:
            return dict(map(self._pair, given))
        if self.optional and given == NONE:
            return None
        if BYTES in self.marks:
            return parse_bytes(given, where=self.flag)
        read = _TYPES[self.type].read
        try:
            return tuple(map(read, given.split(","))) if self.type in _LISTS else read(given)
        except ValueError:
            return given

    def _pair(self, text: str) -> tuple[str, Any]:
        key, equals, value = text.partition("=")
        if not equals or not key:
            hint = f"Write {self.flag} KEY=VALUE."
            raise InputError(f"{self.name} is not KEY=VALUE: {shown(text)} (in {self.flag})", hint=hint)
        with suppress(ValueError):
            parsed = tomllib.loads(f"value = {value}")
            # With a line break the text can hold further keys: then it is a string.
            value = parsed["value"] if list(parsed) == ["value"] else value
        return key, value

    def checked(self, value: Any) -> Any:
        """The value as it is kept, with an int as a float and a list as a tuple where the type says so; an InputError for a wrong one."""
        is_balanced = self.type == Weights and isinstance(value, str) and value == BALANCED
        if (value is None and self.optional) or is_balanced:
            return value
        if self.type == Arguments:
            require_options(value, where=f"{self.owner.__name__}.{self.name}", what=self.name)
        is_list, values = self.type in _LISTS, self.mark(Values)
        try:
            kept = tuple(map(_TYPES[self.type].item, _of(list | tuple)(value) if is_list else (value,)))
            if not kept or not (values is None or all(map(values.fit, kept))):
                raise ValueError
        except InputError:
            raise
        except (TypeError, ValueError, OverflowError):
            raise self.refused(value) from None
        return kept if is_list else kept[0]

    def refused(self, value: object, expected: str = "", hint: str = "") -> InputError:
        """The error of a value; ``hint`` is advice other than to set what is expected."""
        if not expected:
            values, expected = self.mark(Values), _TYPES[self.type].text
            if values is not None:
                expected = f"{expected}, each {values.text}" if self.type in _LISTS else values.text
            expected += ", or None" if self.optional else ""
        words = re.findall("'([^']+)'", expected) or expected.partition("one of ")[2].split(", ")
        return InputError(
            f"{self.name} is {shown(value)}, expected {expected} (in {self.owner.__name__}.{self.name})",
            hint=hint or f"{did_you_mean(value, words)}Set {self.name} to {expected}.",
        )


@cache
def _texts(path: str) -> Mapping[tuple[str, str], str]:
    """The text after each field, by class and field. Python keeps none for a field."""
    classes = (
        node for node in ast.parse(Path(path).read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)
    )
    return {
        (each.name, ast.unparse(node.target)): ast.literal_eval(text.value)
        for each in classes
        for node, text in pairwise(each.body)
        if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


_KNOWN: dict[str, list[str]] = {}
"Names of the fields of each class of options."
_SECTIONS: dict[str, tuple[str, str]] = {}
"For each class of options, its section in a file with settings, and the panel of options without one of their own."


def options(section: str, panel: str) -> Callable[[type[T]], type[T]]:
    """Decorate a dataclass whose fields are options in a section of a file with settings."""

    def decorate(kind: type[T]) -> type[T]:
        _SECTIONS[kind.__name__] = section, panel
        return with_known_names(kind)

    return decorate


def with_known_names(kind: type[T]) -> type[T]:
    """Decorate a dataclass whose fields are given by name: other names are an InputError."""
    name, known = kind.__name__, [each.name for each in fields(kind)]  # type: ignore[arg-type]
    _KNOWN[name] = known
    make: Callable[..., None] = kind.__init__

    @wraps(make)
    def checked(self: T, *values: object, **named: Any) -> None:
        for each in named:
            if each not in known:
                hint = "".join(f"{other} has it. " for other, names in _KNOWN.items() if each in names)
                raise InputError(
                    f"{name} has no such option: {shown(each)} (in {name})", hint=hint + closest(each, known)
                )
        make(self, *values, **named)

    kind.__init__ = checked  # type: ignore[method-assign, assignment]
    return kind


@cache
def options_of(kind: Any) -> Mapping[str, Option]:
    """The options of a dataclass by name: its fields, but for those that are dataclasses themselves."""
    found = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, marks = hints[field.name], getattr(hints[field.name], "__metadata__", ())
        hint = hint.__origin__ if marks else hint
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        base = reduce(or_, (each for each in kinds if each is not NoneType))
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if base in _TYPES:
            found[field.name] = Option(kind, field.name, base, NoneType in kinds, default, marks)
    return found


def check_fields(config: Any) -> None:
    """Check every option of a dataclass that is being made, and keep its value in the option's type."""
    for name, option in options_of(config.__class__).items():
        object.__setattr__(config, name, option.checked(getattr(config, name)))


def require_effect(config: Any) -> None:
    """Refuse options that differ from their defaults, and need others that are not set."""
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    for name, option in options_of(config.__class__).items():
        for need in option.marks:
            if isinstance(need, Needs) and need.unset(values):
                what = (
                    f"{need.names[0]} is not" if len(need.names) == 1 else f"neither {' nor '.join(need.names)} is"
                )
                refuse(config, [name], f"{what} set", f"set {need.names[0]} ({need.example})")


def refuse(config: Any, names: Sequence[str], why: str, instead: str = "") -> None:
    """Refuse those of some options that differ from their defaults: they have no effect, ``why``; ``instead`` is what gives them one."""
    for name in names:
        option, value = options_of(config.__class__)[name], getattr(config, name)
        if value != option.default:
            hint = f"Leave {name} out{instead and ', or '}{instead}."
            raise option.refused(value, f"{option.default} when {why}", hint)
