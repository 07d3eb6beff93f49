"""Tables: CSV and Parquet files, opened by their format, and their columns, chosen by name or position."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from sagann.did_you_mean import did_you_mean
from sagann.errors import DatasetError
from sagann.storage.columns import quoted
from sagann.storage.csv_table import CsvTable
from sagann.storage.parquet_table import ParquetTable

Column: TypeAlias = str | int
Table: TypeAlias = CsvTable | ParquetTable

CSV_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
_TAB_SUFFIXES = (".tsv", ".tsv.gz")
_NAMES = {
    "src": ("src", "source", "from", "u", "head"),
    "dst": ("dst", "destination", "target", "to", "v", "tail"),
    "id": ("id", "vertex", "vertex_id", "node", "node_id"),
}
"Names of columns that say what a column holds, in any case."
_NO_ENDS = ("id", "index", "weight", "type", "time", "timestamp", "ts", "date")
"Names of columns that are not taken for ends of edges."


def named_column(table: Table, role: str) -> str | None:
    """The column beside others whose name says that it holds 'src', 'dst' or 'id'; None without one, an error for two."""
    has_names = table.has_names and len(table.names) > 1
    # As in source_id; the id of a vertex has names of its own.
    end = "" if role == "id" else "_id"
    found = [name for name in table.names if has_names and name.lower().removesuffix(end) in _NAMES[role]]
    if len(found) > 1:
        raise _unclear(table, f"{' and '.join(map(quoted, found))} both name the column of '{role}'")
    return found[0] if found else None


def end_columns(table: Table, given: Sequence[Column | None] = (None, None)) -> list[str]:
    """Columns of sources and destinations: as given, else by name, else the first and the second, unless names speak against it."""
    roles = ("src", "dst")
    named = [
        named_column(table, role) if column is None else column_name(table, column)
        for role, column in zip(roles, given, strict=True)
    ]
    ends = [column_name(table, at) if name is None else name for at, name in enumerate(named)]
    for role, name, known in zip(roles, ends, named, strict=True):
        if known is None and set(named) != {None} == set(given):
            raise _unclear(table, f"no column '{role}' ({', '.join(_NAMES[role])}) beside the other end")
        if known is None and table.has_names and name.lower() in _NO_ENDS:
            raise _unclear(table, f"{quoted(name)} is not taken for an end of edges")
    return ends


def _unclear(table: Table, problem: str) -> DatasetError:
    return DatasetError(
        "it is not clear what the columns are",
        value=f"{problem}; there are {', '.join(map(quoted, table.names[:20]))}",
        where=str(table.path),
        fix="Rename the columns; of an edge list, src and dst (--src and --dst) name them.",
    )


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
) -> Table:
    """Open a table of the format ``kind``, 'csv' or 'parquet'; without ``kind``, the ending of the file's name decides.

    Without a ``separator``, fields are separated by tabs in a '.tsv' file, by commas in any other CSV file.
    """
    if kind == "parquet" or (kind is None and Path(path).suffix in PARQUET_SUFFIXES):
        return ParquetTable(path)
    if separator is None:
        separator = "\t" if Path(path).name.endswith(_TAB_SUFFIXES) else ","
    return CsvTable(path, separator=separator, header=header)
