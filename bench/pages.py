"""Pages of results in Markdown: their options, the command above them, their tables, and tables read again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

COMMON: Mapping[str, tuple[type, str]] = {
    "vertices": (float, "vertices of the generated graph"),
    "edges": (float, "edges of the generated graph"),
    "features": (int, "features of a vertex"),
    "hidden": (int, "width of hidden layers"),
    "batch_size": (int, "seeds of a batch"),
    "rounds": (int, "turns of each in alternation"),
    "threads": (int, "threads of each process"),
    "work": (Path, "folder for graphs and what is spilled, on a disk; one for temporary files by default"),
}
"Options that several benchmarks have: type and meaning."


def parser_of(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser for a module's options, which prints the module's docstring as it is.

    Args:
        description: the docstring.
        defaults: options of :data:`COMMON` that the module has, with their defaults.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        kind, meaning = COMMON[name]
        said = "" if default is None else "; default %(default)s"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=meaning + said)
    return parser


def command_line(module: str, given: Sequence[str] | None = None) -> str:
    """The command of a page: without the files and folders that it wrote, and without the place of DGL's Python.

    Args:
        module: what was run.
        given: its options; those of this process by default.
    """
    shown = ["python", "-m", module]
    rest = iter(part for option in (sys.argv[1:] if given is None else given) for part in option.split("=", 1))
    for option in rest:
        if option in ("--results", "--work"):
            next(rest)
            continue
        shown.append(option)
        if option == "--dgl":
            next(rest)
            shown.append("$DGL_PYTHON")
    return " ".join(shown)


def row(cells: Iterable[object]) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(columns: Sequence[str], words: Iterable[str] = ()) -> str:
    """The first two rows of a table: numbers stand at the right, the first column and those named in ``words`` at the left."""
    left = {columns[0], *words}
    return row(columns) + "\n|" + "|".join("---" if column in left else "--:" for column in columns) + "|"


def figure(value: float | None, form: str = ".2f") -> str:
    """A number of a table; a dash for None."""
    return "-" if value is None else f"{value:{form}}"


def mebibytes(count: int | None, form: str = ".0f") -> str:
    """Bytes in MiB; a dash for None."""
    return "-" if count is None else f"{count / 2**20:{form}}"


def ranged(values: Iterable[float], form: str = ".2f") -> str:
    """The median of some values with the least and the largest."""
    found = sorted(values)
    return f"{median(found):{form}} ({found[0]:{form}} to {found[-1]:{form}})"


def best_of(cost: Callable[[float], float], grid: Sequence[float], steps: Sequence[float]) -> float:
    """The number between 0 and 1 of least cost: the best one of a grid, refined around it step by step."""
    found = {part: cost(part) for part in grid}
    for step in steps:
        best = min(found, key=found.__getitem__)
        for part in (best - step, best + step):
            if 0 < part < 1 and part not in found:
                found[part] = cost(part)
    return min(found, key=found.__getitem__)


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
