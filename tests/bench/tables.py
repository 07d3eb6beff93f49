"""Rows of a benchmark's table."""

from __future__ import annotations


def rows_of(text: str, columns: str) -> list[dict[str, str]]:
    """The rows of a page with one table, by column."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == columns.split(" | ")
    return [dict(zip(lines[0], cells, strict=True)) for cells in lines[2:]]
