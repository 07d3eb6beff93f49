"""The one door to JSON and TOML that others may have written: a document is refused that is nested deeply.

Parsers, and whatever walks, copies, writes or shows their values, call themselves for each level of nesting. How deep they get differs
between versions of Python, and a parser may get deeper than what works with its values. So a document is refused here beyond
:data:`MOST_LEVELS`, far below every such limit.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from typing import Any

MOST_LEVELS = 100
"Largest number of lists and mappings that lie in each other in a document."
MOST_TOML_BYTES = 16 * 2**20
"Largest document of TOML, whose parser is slow."
_MOST_SHOWN = 200
# The parser takes time with the square of the number of a key's parts. A key begins where no letter stands before it.
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_LEVELS}}}")


def parse_json(content: str | bytes) -> Any:
    """Parse JSON that may be damaged.

    Args:
        content: the document.
    Raises:
        ValueError: it is no JSON, has a number that is not finite, or is nested more deeply than MOST_LEVELS.
    Example:
        >>> parse_json("[1, 1e999]")
        Traceback (most recent call last):
        ...
        ValueError: 1e999 is no finite number
    """
    try:
        body = json.loads(content, parse_constant=_finite, parse_float=_finite)
    except RecursionError as error:
        raise _nested() from error
    require_levels(body)
    return body


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML that may be damaged.

    Raises:
        ValueError: it is no TOML, is longer than MOST_TOML_BYTES, is nested more deeply than MOST_LEVELS, or has a key of more parts.
    Example:
        >>> parse_toml("lr = 0.1")
        {'lr': 0.1}
    """
    if len(text) > MOST_TOML_BYTES:
        raise ValueError(f"a text of {len(text)} characters, at most {MOST_TOML_BYTES} are read")
    if long := _LONG_KEY.search(text):
        raise ValueError(
            f"line {text.count(chr(10), 0, long.start()) + 1} has a key of more than {MOST_LEVELS} parts"
        )
    try:
        body = tomllib.loads(text)
    except RecursionError as error:
        raise _nested() from error
    except ValueError as error:
        problem = str(error)
        if len(problem) <= _MOST_SHOWN:
            raise
        # It may hold a whole key; the line stands at its end.
        raise ValueError(f"{problem[: _MOST_SHOWN // 2]}...{problem[-_MOST_SHOWN // 2 :]}") from error
    require_levels(body)
    return body


def require_levels(body: Any, most_levels: int = MOST_LEVELS) -> None:
    """Raise a ValueError where more than ``most_levels`` lists and mappings lie in each other.

    Example:
        >>> require_levels({"a": [1, [2]]}, most_levels=2)
        Traceback (most recent call last):
        ...
        ValueError: it is nested too deeply: more than 2 levels
    """
    level = [body] if isinstance(body, dict | list) else []
    for _ in range(most_levels):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _nested(most_levels)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is no finite number")
    return number


def _nested(most_levels: int = MOST_LEVELS) -> ValueError:
    return ValueError(f"it is nested too deeply: more than {most_levels} levels")
