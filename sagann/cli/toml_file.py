"""TOML files: read with errors that name file and key; write the flat tables that a run is described by."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sagann.errors import InputError
from sagann.storage.regular_file import require_file
from sagann.toml_text import toml_value


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        InputError: it is missing, no text, or no TOML; the message names line and column.
    """
    try:
        return tomllib.loads(read_text(path, what="configuration file"))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(
            "configuration file is not TOML",
            value=str(error),
            where=str(path),
            fix="Mend that line; the sections are [data], [model] and [train].",
        ) from error


def read_text(path: Path, *, what: str) -> str:
    """Read a text file; a byte order mark, as some editors write, is no part of it.

    Args:
        path: of the file.
        what: it is, for errors.
    Raises:
        InputError: it is missing, or cannot be read.
    """
    require_file(path, error=InputError)
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            f"{what} cannot be read",
            value=error.strerror or type(error).__name__,
            where=str(path),
            fix="Check the path.",
        ) from error


def format_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Write tables of strings, numbers, booleans, lists and mappings as TOML.

    Example:
        >>> print(format_toml({"train": {"lr": 0.1, "optimizer_options": {"betas": [0.9, 0.99]}}}), end="")
        [train]
        lr = 0.1
        optimizer_options = {"betas" = [0.9, 0.99]}
    """
    parts = []
    for name, table in tables.items():
        lines = [f"{key} = {toml_value(value)}" for key, value in table.items()]
        parts.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(parts)
