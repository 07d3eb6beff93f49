"""Columns of a table, whatever its format: batches of rows, names, and errors that name the row."""

from __future__ import annotations

import csv
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sagann.errors import DatasetError

Array = np.ndarray[Any, Any]

BATCH_ROWS = 2**19
"Most rows of a batch."
MOST_COLUMNS = 2**16
"Largest number of columns of a table. pyarrow takes 8 KiB of memory and 0.1 ms for each."
LABEL = "label"
"Dtype of a column of labels: integers, also as 1.0, and NaN where a value is missing; read as float64."
FIX_INTEGERS = (
    "Vertex ids, types and labels are integers from 0; replace names by numbers, with pandas.factorize for example. "
    "Of an edge list, src, dst, weight and edge_type (--src, ...) choose other columns."
)
"What to do where a column of integers holds something else."
UNREADABLE = (pa.ArrowException, OSError, EOFError, zlib.error, csv.Error, ValueError, KeyError)
"Errors that say that a file is not what its format demands."


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Some rows of a table."""

    columns: tuple[Array, ...]
    "One array [n] for each requested column."
    first_row: int
    "Row number of the first row."


def quoted(name: str) -> str:
    """A column's name, for people."""
    return name if name.startswith("column ") else f"column '{name}'"


def stored_as(dtype: str) -> str:
    """The dtype of the array in which a column of a dtype is returned."""
    return "float64" if dtype == LABEL else dtype


def require_columns(count: int, path: Path) -> None:
    """Refuse a table of too many columns."""
    if count > MOST_COLUMNS:
        raise DatasetError(
            "table has too many columns",
            value=f"{count}, at most {MOST_COLUMNS} are read",
            where=str(path),
            fix="Check the separator; save features of so many columns with numpy.save.",
        )


def refuse_doubles(names: Sequence[str], path: Path) -> None:
    """Refuse columns that share a name."""
    doubles = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubles:
        raise DatasetError(
            "columns share a name",
            value=", ".join(repr(name) for name in doubles[:20]),
            where=str(path),
            fix="Rename one of them, or say that the file has no header.",
        )


def bad_row(path: Path, row: int, problem: str, fix: str) -> DatasetError:
    """The error of a row that cannot be used."""
    return DatasetError("row cannot be used", value=problem, where=f"{path}, row {row}", fix=fix)
