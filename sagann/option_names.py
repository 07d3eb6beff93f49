"""Names of options: a class of options refuses unknown ones with the nearest name that it knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

from sagann.did_you_mean import closest
from sagann.errors import InputError, shown

T = TypeVar("T")
_KNOWN: dict[str, list[str]] = {}
"Names of the options of each decorated class."


def with_known_names(options: type[T]) -> type[T]:
    """Decorate a dataclass whose fields are given by name: other names, and values without a name, are an InputError.

    Example:
        >>> from dataclasses import dataclass
        >>> @with_known_names
        ... @dataclass(kw_only=True)
        ... class Options:
        ...     epochs: int = 1
        >>> Options(epoch=3)
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: Options has no such option: 'epoch' (in Options). Did you mean 'epochs'? Known: epochs.
    """
    _KNOWN[options.__name__] = [each.name for each in fields(options)]  # type: ignore[arg-type]
    make: Callable[..., None] = options.__init__

    @wraps(make)
    def checked(self: T, *values: object, **named: Any) -> None:
        name = type(self).__name__
        known = _KNOWN[options.__name__]
        if values:
            raise InputError(
                f"{name} takes options by name alone",
                value=f"{shown(values[0])} without a name",
                where=name,
                fix=f"Write the name of each option, as {name}({known[0]}={shown(values[0])}).",
            )
        for each in named:
            if each not in known:
                others = [other for other, names in _KNOWN.items() if each in names]
                fix = "".join(f"{other} has it. " for other in others) + closest(each, known)
                raise InputError(f"{name} has no such option", value=shown(each), where=name, fix=fix)
        make(self, **named)

    options.__init__ = checked  # type: ignore[method-assign, assignment]
    return options
