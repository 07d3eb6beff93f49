"""Writing TOML, which Python's own library only reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def toml_value(value: Any) -> str:
    """Write a string, a number, a boolean, a list or a mapping as TOML.

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


def format_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Write tables as a TOML file.

    Example:
        >>> print(format_toml({"train": {"lr": 0.1, "optimizer_options": {"betas": [0.9, 0.99]}}}), end="")
        [train]
        lr = 0.1
        optimizer_options = {"betas" = [0.9, 0.99]}
    """
    parts = []
    for name, table in tables.items():
        lines = [f"{key} = {toml_value(value)}\n" for key, value in table.items()]
        parts.append("".join([f"[{name}]\n", *lines]))
    return "\n".join(parts)


def _string(text: str) -> str:
    # A basic string of TOML escapes as JSON does, except DEL, and except characters that JSON writes as a pair.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
