"""Tables: CSV and Parquet files, opened by their format, and their columns, chosen by name or position."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from sagann.did_you_mean import did_you_mean
from sagann.errors import DatasetError
from sagann.storage.columns import quoted
from sagann.storage.csv_table import CsvTable
from sagann.storage.expanded import EXPANSION
from sagann.storage.parquet_table import ParquetTable

Column: TypeAlias = str | int
Table: TypeAlias = CsvTable | ParquetTable

CSV_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
_TAB_SUFFIXES = (".tsv", ".tsv.gz")


def column_name(table: Table, column: Column) -> str:
    """Find a column by name, or by position from 0."""
    if isinstance(column, str) and column in table.names:
        return column
    position = int(column) if isinstance(column, int) or column.isdecimal() else -1
    if 0 <= position < len(table.names):
        return require_named(table, table.names[position])
    raise DatasetError(
        "column not found",
        value=f"no column {column!r}; there are {', '.join(quoted(name) for name in table.names[:20])}",
        where=str(table.path),
        fix=f"{did_you_mean(column, table.names)}Choose a column by name or by position from 0; check the separator.",
    )


def require_named(table: Table, column: str) -> str:
    """The name of a column chosen by position; a column without a name is refused, because it may be an index."""
    if column:
        return column
    raise DatasetError(
        "a column has no name",
        value=", ".join(repr(name) for name in table.names[:20]),
        where=str(table.path),
        fix="If the column is an index, write the file without it (pandas: to_csv(..., index=False)), or choose columns by "
        "their names; else name the column.",
    )


def open_table(
    path: str | os.PathLike[str],
    *,
    separator: str | None = None,
    header: bool | None = None,
    kind: str | None = None,
    expansion: int = EXPANSION,
) -> Table:
    """Open a table of the format ``kind``, 'csv' or 'parquet'; without ``kind``, the ending of the file's name decides.

    Without a ``separator``, fields are separated by tabs in a '.tsv' file, by commas in any other CSV file. ``expansion`` bounds a
    compressed CSV file.
    """
    if kind == "parquet" or (kind is None and Path(path).suffix in PARQUET_SUFFIXES):
        return ParquetTable(path)
    if separator is None:
        separator = "\t" if Path(path).name.endswith(_TAB_SUFFIXES) else ","
    return CsvTable(path, separator=separator, header=header, expansion=expansion)
