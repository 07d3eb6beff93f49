"""Tables of Markdown in files of results."""

from __future__ import annotations

from pathlib import Path


def read_table(path: Path, column: str) -> list[dict[str, str]]:
    """The rows of all tables of a file that have a certain column.

    Args:
        path: a file in Markdown; a missing file has no rows.
        column: the column's heading.
    """
    found: list[dict[str, str]] = []
    header: list[str] | None = None
    for line in path.read_text().splitlines() if path.exists() else ():
        cells = [cell.strip() for cell in line[1:-1].split("|")] if line.startswith("|") else None
        if cells is None:
            header = None
        elif header is None:
            header = cells
        elif column in header and not line.startswith("|--"):
            found.append(dict(zip(header, cells, strict=True)))
    return found
