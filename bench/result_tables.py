"""Tables of Markdown in files of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def read_table(path: Path, column: str) -> list[dict[str, str]]:
    """The rows of all tables of a file that have a certain column.

    Args:
        path: a file in Markdown; a missing file has no rows.
        column: the column's heading.
    """
    return [row for _, rows in captioned_tables(path, column) for row in rows]


def captioned_tables(path: Path, column: str) -> list[tuple[str, list[dict[str, str]]]]:
    """The tables of a file that have a certain column: for each the line of text before it, and its rows.

    Args:
        path: a file in Markdown; a missing file has no tables.
        column: the column's heading.
    """
    found: list[tuple[str, list[dict[str, str]]]] = []
    header: list[str] | None = None
    caption = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        cells = [cell.strip() for cell in line[1:-1].split("|")] if line.startswith("|") else None
        if cells is None:
            header, caption = None, line.strip() or caption
        elif header is None:
            header = cells
            if column in header:
                found.append((caption, []))
        elif column in header and not line.startswith(("|--", "|:-")):
            found[-1][1].append(dict(zip(header, cells, strict=True)))
    return found


def table_line(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"
