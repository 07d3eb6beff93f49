"""Vertex features, labels and split lists in ``.npy``, CSV or Parquet files, as row sources."""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sagann.errors import DatasetError
from sagann.storage.regular_file import require_file
from sagann.storage.tables import BATCH_ROWS, CsvTable, ParquetTable, open_table, require_named
from sagann.storage.vertex_arrays import ArrayRows, RowChunk, RowSource

Array = np.ndarray[Any, Any]

_CHUNK_BYTES = 2**24


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRows:
    """Row source over all columns of a table."""

    table: CsvTable | ParquetTable
    "The file."
    dtype: str
    "Name of the torch dtype to store."
    row_shape: tuple[int, ...]
    "(F,) for F columns; () for a single one."

    def chunks(self) -> Iterator[RowChunk]:
        """The rows; a batch of many columns is cut to bounded size."""
        names = self.table.names
        read_as = "float32" if self.dtype.startswith("float") else "int64"
        step = max(1, min(BATCH_ROWS, _CHUNK_BYTES // (8 * len(names))))
        for batch in self.table.batches(names, [read_as] * len(names)):
            for begin in range(0, len(batch.columns[0]), step):
                parts = [column[begin : begin + step] for column in batch.columns]
                rows = np.stack(parts, axis=1) if self.row_shape else parts[0]
                if self.dtype == "uint8":
                    _refuse_beyond_a_byte(rows, self.table.path, batch.first_row + begin)
                yield RowChunk(rows=rows, file=str(self.table.path), first_row=batch.first_row + begin)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelRows:
    """Row source over labels that may be floats with NaN for unknown, or stand in a single column."""

    rows: RowSource
    "The labels as the file has them."
    row_shape: tuple[int, ...] = ()
    "Always one label in a row."
    dtype: str = "int64"
    "Always int64."

    def chunks(self) -> Iterator[RowChunk]:
        """The labels as integers, -1 where unknown."""
        for chunk in self.rows.chunks():
            values = chunk.rows.reshape(len(chunk.rows), -1)[:, 0] if len(chunk.rows) else chunk.rows.reshape(0)
            if values.dtype.kind == "f":
                unknown = np.isnan(values)
                # In double precision, because 2**31 is beyond half precision.
                known = np.where(unknown, -1, values.astype(np.float64))
                wrong = (known != np.floor(known)) | (np.abs(known) > 2**31)
                if wrong.any():
                    at = int(wrong.argmax())
                    raise DatasetError(
                        "label is not an integer",
                        value=str(values[at]),
                        where=f"{chunk.file}, row {chunk.first_row + at}",
                        fix="Number the classes from 0; NaN and -1 stand for unknown.",
                    )
                values = known
            elif values.dtype.kind == "u" and len(values) and values.max() >= 2**63:
                # As int64 it would turn negative, and -1 stands for unknown.
                raise DatasetError(
                    "label out of range",
                    value=f"{values.max()} does not fit 63 bits",
                    where=f"{chunk.file}, row {chunk.first_row + int(values.argmax())}",
                    fix="Number the classes from 0, and write -1 where a label is unknown.",
                )
            yield RowChunk(rows=values.astype(np.int64), file=chunk.file, first_row=chunk.first_row)


def open_features(path: str | os.PathLike[str], *, separator: str | None = None) -> RowSource:
    """Open vertex features: ``.npy`` [N, F], or a table with F columns.

    Args:
        path: the file.
        separator: as of :func:`sagann.storage.tables.open_table`.
    Raises:
        DatasetError: the file is missing, damaged, or does not hold numbers in two dimensions.
    """
    if Path(path).suffix == ".npy":
        array = map_array(path)
        if array.ndim != 2 or array.dtype.kind not in "fiub":
            raise _wrong_form(path, array, "numbers [num_vertices, num_features]")
        keep = array.dtype.name if array.dtype.name in ("float16", "float32", "float64") else "float32"
        return ArrayRows(
            array=array, file=str(path), dtype=keep, chunk_rows=max(1, _CHUNK_BYTES // max(1, array.shape[1] * 8))
        )
    table = open_table(path, separator=separator)
    for name in table.names:
        require_named(table, name)
    if table.may_be_numbered:
        raise DatasetError(
            "the first row may be data or names",
            value=f"0, 1, ..., {len(table.names) - 1}",
            where=f"{path}, row 1",
            fix="Take it out of the file if it numbers the columns (pandas: to_csv(..., header=False)); give the columns names "
            "if it is a vertex's.",
        )
    return TableRows(table=table, dtype="float32", row_shape=(len(table.names),))


def open_labels(path: str | os.PathLike[str], *, separator: str | None = None) -> RowSource:
    """Open vertex labels: ``.npy`` [N] or [N, C], or a table with one column, or C of 0/1.

    Args:
        path: the file.
        separator: as of :func:`sagann.storage.tables.open_table`.
    Raises:
        DatasetError: the file is missing, damaged, or does not hold labels.
    """
    if Path(path).suffix == ".npy":
        return label_rows(map_array(path), str(path))
    table = open_table(path, separator=separator)
    if len(table.names) == 1:
        return LabelRows(rows=TableRows(table=table, dtype="int64", row_shape=()))
    return TableRows(table=table, dtype="uint8", row_shape=(len(table.names),))


def label_rows(array: Array, file: str) -> RowSource:
    """Make a row source of labels [N], [N, 1] (integers, or floats with NaN for unknown) or [N, C] of 0/1.

    Raises:
        DatasetError: the array has another form.
    """
    single = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)
    if single and array.dtype.kind in "iuf":
        return LabelRows(rows=ArrayRows(array=array, file=file, dtype="int64"))
    if array.ndim == 2 and array.dtype.kind in "iub":
        return _MultiLabelRows(rows=ArrayRows(array=array, file=file, dtype="uint8"))
    raise _wrong_form(file, array, "integers [num_vertices], or 0 and 1 [num_vertices, num_classes]")


@dataclass(frozen=True, kw_only=True, slots=True)
class _MultiLabelRows:
    rows: ArrayRows
    dtype: str = "uint8"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.rows.row_shape

    def chunks(self) -> Iterator[RowChunk]:
        for chunk in self.rows.chunks():
            _refuse_beyond_a_byte(chunk.rows, Path(chunk.file), chunk.first_row)
            yield RowChunk(rows=chunk.rows.astype(np.uint8), file=chunk.file, first_row=chunk.first_row)


def map_array(path: str | os.PathLike[str]) -> Array:
    """Map an ``.npy`` file into memory; never unpickles.

    Raises:
        DatasetError: the file is missing, damaged, truncated, or holds pickled objects.
    """
    require_file(path)
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DatasetError(
            "file not found", value="there is no such file", where=str(path), fix="Check the path."
        ) from error
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, OverflowError, tokenize.TokenError) as error:
        raise DatasetError(
            "file cannot be read",
            value=str(error).splitlines()[0] if str(error) else type(error).__name__,
            where=str(path),
            fix="Save a plain numeric array with numpy.save; pickled objects are never loaded.",
        ) from error
    if not isinstance(array, np.ndarray):
        raise DatasetError(
            "file is not an .npy array", value=type(array).__name__, where=str(path), fix="Save with numpy.save."
        )
    return array


def masks_of(split_ids: Mapping[str, Sequence[tuple[Array, str]]], num_vertices: int) -> dict[str, RowSource]:
    """Turn lists of vertex ids into masks.

    Args:
        split_ids: for each split the ids, and the file they came from, in one part or several.
        num_vertices: length of the masks.
    Raises:
        DatasetError: an id is out of range; names file and row.
    """
    masks: dict[str, RowSource] = {}
    for name, parts in split_ids.items():
        mask = np.zeros(num_vertices, dtype=np.bool_)
        for ids, file in parts:
            wrong = (ids < 0) | (ids >= num_vertices)
            if wrong.any():
                at = int(wrong.argmax())
                raise DatasetError(
                    f"vertex of split '{name}' out of range",
                    value=f"{int(ids[at])}, but there are {num_vertices} vertices, numbered from 0",
                    where=f"{file}, row {at + 1}",
                    fix="Make the split again for this graph.",
                )
            mask[ids] = True
        masks[name] = ArrayRows(
            array=mask, file=", ".join(file for _, file in parts), dtype="bool", chunk_rows=2**24
        )
    return masks


def _refuse_beyond_a_byte(rows: Array, path: Path, first_row: int) -> None:
    wrong = ((rows < 0) | (rows > 1)).reshape(len(rows), -1).any(axis=1)
    if wrong.any():
        at = int(wrong.argmax())
        raise DatasetError(
            "label out of range",
            value=f"{rows[at].tolist()}, but multi-label rows hold 0 and 1",
            where=f"{path}, row {first_row + at}",
            fix="Write 1 for every class that a vertex has, and 0 for the others.",
        )


def _wrong_form(path: str | os.PathLike[str], array: Array, expected: str) -> DatasetError:
    return DatasetError(
        "array has the wrong form",
        value=f"{array.dtype} {list(array.shape)}, expected {expected}",
        where=str(path),
        fix="Convert it and save it again with numpy.save.",
    )
