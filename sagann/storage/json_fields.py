"""Values of JSON, checked by type: each function returns the value, or raises a TypeError that says what was expected."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from sagann.errors import shown
from sagann.ranges import RANGES

T = TypeVar("T")


def _is(kind: type[T], expected: str) -> Callable[[Any], T]:
    def checked(value: Any) -> T:
        # Not isinstance: a bool is no count.
        if type(value) is not kind:
            raise _unexpected(value, expected)
        return value

    return checked


as_text, as_flag = _is(str, "text"), _is(bool, "true or false")
as_list, as_mapping = _is(list, "a list"), _is(dict, "an object")


def as_integer(value: Any, name: str, *, of: str | None = None) -> int:
    """An integer in the range of ``name``, a key of :data:`sagann.ranges.RANGES`; ``of`` is its key, for the error, if that is another one."""
    if value not in RANGES[name]:
        raise _unexpected(value, f"{RANGES[name]} for {of or name}")
    return int(value)


def as_number(value: Any, name: str) -> float:
    """A finite number, neither a flag nor an integer beyond the largest float; ``name`` is for the error."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Written so that NaN fails too.
    if not (is_number and -sys.float_info.max <= value <= sys.float_info.max):
        raise _unexpected(value, f"a finite number for {name}")
    number: float = value
    return number


def as_texts(value: Any) -> tuple[str, ...]:
    """A list of texts that can be written in UTF-8, which an escape in JSON may spoil."""
    texts = tuple(as_text(item) for item in as_list(value))
    for text in texts:
        if text.encode(errors="replace").decode() != text:
            raise _unexpected(text, "text that can be written in UTF-8")
    return texts


def _unexpected(value: Any, expected: str) -> TypeError:
    return TypeError(f"expected {expected}, found {shown(value, 40)}")
