"""Rows of a benchmark's table."""

from __future__ import annotations

from collections.abc import Sequence


def rows_of(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a page with one table, by column."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == list(columns)
    return [dict(zip(columns, cells, strict=True)) for cells in lines[2:]]
