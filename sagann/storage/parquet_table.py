"""A Parquet file as a table, streamed in batches with row numbers for messages. Rows are counted from 0."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sagann.errors import DatasetError
from sagann.storage.columns import (
    BATCH_ROWS,
    FIX_INTEGERS,
    LABEL,
    UNREADABLE,
    Array,
    Batch,
    bad_row,
    quoted,
    refuse_doubles,
    require_columns,
    stored_as,
)
from sagann.storage.regular_file import reading

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


class ParquetTable:
    """A Parquet file, read row group by row group."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._open() as file:
            self._schema = file.schema_arrow
            self._num_rows: int = file.metadata.num_rows
        require_columns(len(self._schema.names), self.path)
        # The index that pandas writes is no column of the table.
        self.names = [name for name in self._schema.names if not _PANDAS_INDEX.fullmatch(name)]
        if not self.names:
            raise DatasetError(
                "table has no columns",
                value=f"{self._num_rows} rows, and {', '.join(self._schema.names) or 'nothing'} in them",
                where=str(self.path),
                fix="Write the values as columns with names.",
            )
        refuse_doubles(self.names, self.path)
        self.has_names, self.may_be_numbered = True, False

    def estimate_rows(self) -> int:
        """Number of rows, from the file's footer."""
        return self._num_rows

    def batches(self, columns: Sequence[str], dtypes: Sequence[str]) -> Iterator[Batch]:
        """As :meth:`sagann.storage.csv_table.CsvTable.batches`."""
        for name, dtype in zip(columns, dtypes, strict=True):
            kind = self._schema.field(name).type
            fits = pa.types.is_integer(kind) or (dtype != "int64" and pa.types.is_floating(kind))
            if not fits:
                raise DatasetError(
                    "column has the wrong type",
                    value=f"{quoted(name)} is {kind}, expected {'integers' if dtype == 'int64' else 'numbers'}",
                    where=str(self.path),
                    fix=FIX_INTEGERS,
                )
        first_row = 0
        # A buffered stream, so that a row group larger than memory is not read at once.
        with self._open(buffer_size=2**20, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(dict.fromkeys(columns))):
                arrays = tuple(
                    self._array(batch.column(name), name, dtype, first_row)
                    for name, dtype in zip(columns, dtypes, strict=True)
                )
                yield Batch(columns=arrays, first_row=first_row)
                first_row += batch.num_rows

    @contextmanager
    def _open(self, **options: Any) -> Iterator[pq.ParquetFile]:
        with (
            reading(self.path, UNREADABLE),
            self.path.open("rb") as opened,
            pq.ParquetFile(opened, **options) as file,
        ):
            yield file

    def _array(self, column: Any, name: str, dtype: str, first_row: int) -> Array:
        if column.null_count and dtype != LABEL:
            at = int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))
            raise bad_row(
                self.path, first_row + at, f"{quoted(name)} is null", "Drop or fill rows with missing values."
            )
        array: Array = column.to_numpy(zero_copy_only=False)
        if dtype != "int64":
            return array.astype(stored_as(dtype), copy=False)
        if array.dtype == np.uint64 and len(array) and array.max() >= 2**63:
            at = int(array.argmax())
            problem = f"{array[at]} in {quoted(name)} does not fit 63 bits"
            raise bad_row(self.path, first_row + at, problem, "Number the vertices from 0 without gaps.")
        # Narrow integers may stay narrow: there is less to copy.
        return array if array.dtype == np.int32 else array.astype(np.int64, copy=False)
