"""Features, labels and targets of vertices in ``.npy``, CSV or Parquet files, as rows to import."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sagann.errors import DatasetError
from sagann.storage.rows import RowChunk, Rows, as_features, as_labels, as_targets, chunk_rows, open_rows
from sagann.storage.tables import LABEL, Table, named_column, open_table, require_named

PathLike = str | os.PathLike[str]

_FORMS = {"features": ("float32", as_features), "labels": (LABEL, as_labels), "targets": ("float64", as_targets)}
"By the name of an array: the dtype as which columns of a table are read, and what checks its form."


def table_rows(table: Table, dtype: str, *, is_matrix: bool = False) -> Rows:
    """The columns of a table without that of ids, read as ``dtype``; of a single column, a vector unless ``is_matrix``."""
    ids = named_column(table, "id")
    names = [name for name in table.names if name != ids]
    is_matrix = is_matrix or len(names) > 1

    def chunks() -> Iterator[RowChunk]:
        columns, dtypes = list(names), [dtype] * len(names)
        if ids is not None:
            columns, dtypes = [*columns, ids], [*dtypes, "int64"]
        # A batch of many columns is cut into chunks of bounded size.
        step = chunk_rows((len(names),))
        for batch in table.batches(columns, dtypes):
            for begin in range(0, len(batch.columns[0]), step):
                parts = [column[begin : begin + step] for column in batch.columns]
                known = None if ids is None else parts.pop()
                rows = np.stack(parts, axis=1) if is_matrix else parts[0]
                yield RowChunk(rows=rows, first_row=batch.first_row + begin, ids=known)

    return Rows(
        file=str(table.path),
        dtype=np.dtype("float64" if dtype == LABEL else dtype),
        shape=(-1, len(names)) if is_matrix else (-1,),
        chunks=chunks,
        names=tuple(names) if table.has_names else (),
    )


def table_array(table: Table, name: str) -> Rows:
    """The columns of a table but its ids, as the array ``name``: features, labels (one column, or C of 0 and 1), or targets."""
    dtype, form = _FORMS[name]
    return form(table_rows(table, dtype, is_matrix=name == "features"))


def open_array(path: PathLike, name: str, *, separator: str | None = None) -> Rows:
    """Open an ``.npy`` file or a table as the array ``name``: features [N, F], labels [N] or [N, C], or targets [N] or [N, T]."""
    if Path(path).suffix == ".npy":
        return _FORMS[name][1](open_rows(path))
    return table_array(
        open_table(path, separator=separator) if name == "labels" else _table_of_numbers(path, separator), name
    )


def _table_of_numbers(path: PathLike, separator: str | None) -> Table:
    """Open a table of numbers; refuse columns without a name, and a first row that may be a row or names."""
    table = open_table(path, separator=separator)
    for name in table.names:
        require_named(table, name)
    if table.may_be_numbered:
        raise DatasetError(
            f"the first row may be data or names: 0, 1, ..., {len(table.names) - 1} (in {path}, row 1)",
            hint="If the row numbers the columns, take it out of the file (pandas: to_csv(..., header=False)); if it has "
            "the numbers of the first vertex, give the columns names.",
        )
    return table
