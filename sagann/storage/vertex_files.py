"""Vertex features, labels and targets in ``.npy``, CSV or Parquet files, as row sources."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sagann.errors import DatasetError
from sagann.storage.columns import BATCH_ROWS, LABEL
from sagann.storage.npz import UNREADABLE_HEADER, read_npy_header
from sagann.storage.regular_file import reading
from sagann.storage.row_source import (
    Array,
    ArrayRows,
    LabelRows,
    RowChunk,
    RowSource,
    TargetRows,
    feature_dtype,
    label_rows,
    target_rows,
)
from sagann.storage.tables import Table, named_column, open_table, require_named

_CHUNK_BYTES = 2**24


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRows:
    """A row source over columns of a table."""

    table: Table
    "The file."
    dtype: str
    "Name of the dtype to read and to store: 'int64', 'float32', 'float64' or LABEL."
    names: Sequence[str]
    "Columns to read."
    row_shape: tuple[int, ...]
    "Shape of one row: (F,) for F columns; () for a column alone."
    ids: str | None = None
    "Column with the vertex of each row; None where rows are in the order of the vertices."

    @classmethod
    def of(cls, table: Table, dtype: str, *, is_matrix: bool = False) -> TableRows:
        """The columns of a table without its ids; of a single column, a vector unless ``is_matrix``."""
        ids = named_column(table, "id")
        names = [name for name in table.names if name != ids]
        row_shape = (len(names),) if is_matrix or len(names) > 1 else ()
        return cls(table=table, dtype=dtype, names=names, row_shape=row_shape, ids=ids)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names that the file gives its columns; empty without a line of names."""
        return tuple(self.names) if self.table.has_names else ()

    @property
    def file(self) -> str:
        """Path of the table."""
        return str(self.table.path)

    def chunks(self) -> Iterator[RowChunk]:
        """Yield the rows; a batch of many columns is cut into chunks of bounded size."""
        names, dtypes = list(self.names), [self.dtype] * len(self.names)
        step = max(1, min(BATCH_ROWS, _CHUNK_BYTES // (8 * len(names))))
        if self.ids is not None:
            names, dtypes = [*names, self.ids], [*dtypes, "int64"]
        for batch in self.table.batches(names, dtypes):
            for begin in range(0, len(batch.columns[0]), step):
                parts = [column[begin : begin + step] for column in batch.columns]
                ids = None if self.ids is None else parts.pop()
                rows = np.stack(parts, axis=1) if self.row_shape else parts[0]
                yield RowChunk(rows=rows, first_row=batch.first_row + begin, ids=ids)


def table_features(table: Table) -> TableRows:
    """The columns of a table but its ids, as float32."""
    return TableRows.of(table, "float32", is_matrix=True)


def table_labels(table: Table) -> RowSource:
    """Labels of a table: one column, or C columns of 0 and 1, and ids."""
    rows = TableRows.of(table, LABEL)
    return LabelRows(rows=rows, row_shape=rows.row_shape)


def open_features(path: str | os.PathLike[str], *, separator: str | None = None) -> TableRows | ArrayRows:
    """Open vertex features: ``.npy`` [N, F], or a table with F columns."""
    if Path(path).suffix == ".npy":
        array = map_array(path)
        dtype = feature_dtype(array, str(path))
        chunk_rows = max(1, _CHUNK_BYTES // max(1, array.shape[1] * 8))
        return ArrayRows(array=array, file=str(path), dtype=dtype, chunk_rows=chunk_rows)
    return table_features(_table_of_numbers(path, separator=separator))


def _table_of_numbers(path: str | os.PathLike[str], *, separator: str | None) -> Table:
    """Open a table of numbers; refuse columns without a name, and a first row that may be a row or names."""
    table = open_table(path, separator=separator)
    for name in table.names:
        require_named(table, name)
    if table.may_be_numbered:
        raise DatasetError(
            "the first row may be data or names",
            value=f"0, 1, ..., {len(table.names) - 1}",
            where=f"{path}, row 1",
            fix="If the row numbers the columns, take it out of the file (pandas: to_csv(..., header=False)); if it has "
            "the numbers of the first vertex, give the columns names.",
        )
    return table


def open_labels(path: str | os.PathLike[str], *, separator: str | None = None) -> RowSource:
    """Open vertex labels: ``.npy`` [N] or [N, C], or a table with one column, or C of 0/1."""
    if Path(path).suffix == ".npy":
        return array_labels(map_array(path), str(path))
    return table_labels(open_table(path, separator=separator))


def open_targets(path: str | os.PathLike[str], *, separator: str | None = None) -> RowSource:
    """Open targets of a regression: ``.npy`` [N] or [N, T], or a table with a column for each target."""
    if Path(path).suffix == ".npy":
        array = map_array(path)
        return target_rows(ArrayRows(array=array, file=str(path), dtype="float32"), array)
    rows = TableRows.of(_table_of_numbers(path, separator=separator), "float64")
    return TargetRows(rows=rows, row_shape=rows.row_shape)


def array_labels(array: Array, file: str) -> RowSource:
    """Read an array as labels; :func:`sagann.storage.row_source.label_rows` states the forms and the errors."""
    return label_rows(ArrayRows(array=array, file=file, dtype="int64"), array)


def map_array(path: str | os.PathLike[str]) -> Array:
    """Map an ``.npy`` file into memory; never unpickles."""
    fix = "Save a plain numeric array with numpy.save; pickled objects are never loaded."
    with reading(path, UNREADABLE_HEADER, fix=fix), open(path, "rb") as file:
        shape, fortran, dtype = read_npy_header(file)
        if dtype.hasobject:
            raise ValueError("it holds pickled objects")
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")
