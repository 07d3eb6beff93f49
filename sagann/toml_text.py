"""Values as TOML writes them; Python's own library only reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def toml_value(value: Any) -> str:
    """Write a string, a number, a boolean, a list or a mapping as TOML.

    Raises:
        TypeError: it is none of these.
    Example:
        >>> print(toml_value({"lr": 0.1, "betas": [0.9, 0.99], "note": 'the "best"'}))
        {"lr" = 0.1, "betas" = [0.9, 0.99], "note" = "the \\"best\\""}
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_string(str(key))} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} has no form in TOML")


def _string(text: str) -> str:
    # TOML's basic strings escape as JSON does, but for DEL, and for characters that JSON writes as a pair.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
