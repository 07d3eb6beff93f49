"""Writing TOML, which Python's own library only reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def toml_value(value: Any) -> str:
    """Write a string, a number, a boolean, a list or a mapping as TOML; None is the text 'none', by which settings are unset.

    Example:
        >>> print(toml_value({"lr": 0.1, "betas": [0.9, 0.99], "note": 'the "best"'}))
        {"lr" = 0.1, "betas" = [0.9, 0.99], "note" = "the \\"best\\""}
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_value(str(key))} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, str | int | float | None):
        raise TypeError(f"{type(value).__name__} has no form in TOML")
    # TOML writes strings, numbers and booleans as JSON does, except DEL, and except characters that JSON writes as a pair.
    return json.dumps("none" if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")


def format_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Write tables as a TOML file.

    Example:
        >>> print(format_toml({"train": {"lr": 0.1, "optimizer_options": {"betas": [0.9, 0.99]}}}), end="")
        [train]
        lr = 0.1
        optimizer_options = {"betas" = [0.9, 0.99]}
    """
    lines = {
        name: [f"{key} = {toml_value(value)}\n" for key, value in table.items()] for name, table in tables.items()
    }
    return "\n".join("".join([f"[{name}]\n", *each]) for name, each in lines.items())
