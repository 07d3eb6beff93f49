"""Arrays with one row per vertex or edge, on their way into a dataset: read and checked in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from sagann.errors import DatasetError
from sagann.free_space import require_memory
from sagann.graph.checks import (
    NOT_A_NUMBER,
    Where,
    check_ids,
    check_labels,
    first_true,
    not_finite,
    numbered,
    wrong_form,
)
from sagann.storage.npz import NpzMember

Array = np.ndarray[Any, Any]
Stored: TypeAlias = Array | NpzMember
"An array, or the header of an array in an archive."

_FIX_FORM = "Save the array in the form that docs/data.md describes."


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChunk:
    """Some consecutive rows of an array."""

    rows: Array
    "Values [n, ...]."
    first_row: int = 0
    "Row number of the first row in the file; rows are counted from 1 in CSV files, from 0 in all others."
    ids: Array | None = None
    "Ids of the vertices that the rows belong to, int64 [n]; None where rows are in the order of the vertices."


class RowSource(Protocol):
    """An array to import. A source is read once, from start to end."""

    @property
    def file(self) -> str:
        """Name of the file of the rows, for errors."""

    @property
    def dtype(self) -> str:
        """Name of the torch dtype to store."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row: () for labels, (F,) for features."""

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayRows:
    """A row source over an array that is in memory or mapped from a file."""

    array: Array
    "Values [N, ...]."
    file: str
    "Name of the array in errors."
    dtype: str
    "Name of the torch dtype to store."
    chunk_rows: int = 65536
    "Number of rows in a chunk."
    column_names: tuple[str, ...] = ()
    "Names of the columns, or empty."

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.array.shape[1:])

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, ``chunk_rows`` at a time; rows without values all at once, however many there are."""
        step = self.chunk_rows if self.array.size else max(1, len(self.array))
        for begin in range(0, len(self.array), step):
            yield RowChunk(rows=self.array[begin : begin + step], first_row=begin)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelRows:
    """A row source over labels: one class per vertex (NaN and -1 for unknown), or 0 and 1 for each class."""

    rows: RowSource
    "Labels as the file holds them."
    row_shape: tuple[int, ...]
    "() for one class per vertex, (C,) for 0 and 1."

    @property
    def file(self) -> str:
        """Name of the labels in errors."""
        return self.rows.file

    @property
    def dtype(self) -> str:
        """Type in which the labels are stored."""
        return "uint8" if self.row_shape else "int64"

    def chunks(self) -> Iterator[RowChunk]:
        """Labels as int64 [n], -1 where unknown; or as uint8 [n, C]."""
        for chunk in self.rows.chunks():
            where = numbered(self.file, "row", chunk.first_row)
            if self.row_shape:
                check_labels(chunk.rows, None, where=where, error=DatasetError)
                rows = chunk.rows.astype(np.uint8)
            else:
                rows = self._classes(chunk)
            yield replace(chunk, rows=rows)

    def _classes(self, chunk: RowChunk) -> Array:
        values = chunk.rows.reshape(len(chunk.rows))
        problem, wrong = "", np.zeros(len(values), dtype=np.bool_)
        if values.dtype.kind == "f":
            # In double precision, because 2**31 is beyond half precision.
            known = np.where(np.isnan(values), -1, values.astype(np.float64))
            wrong, problem = (known != np.floor(known)) | (np.abs(known) > 2**31), "is not an integer of 32 bits"
            values = np.where(wrong, 0, known)
        elif values.dtype.kind == "u":
            # As int64 a larger value would turn negative, and -1 stands for unknown.
            wrong, problem = values >= 2**63, "does not fit 63 bits"
        at = first_true(wrong)
        if at is not None:
            raise DatasetError(
                "label is not an integer",
                value=f"{chunk.rows.reshape(-1)[at]} {problem}",
                where=f"{self.file}, row {chunk.first_row + at}",
                fix="Number the classes from 0; NaN and -1 stand for unknown. Values to predict in a regression are 'targets'.",
            )
        return values.astype(np.int64)


def label_rows(rows: RowSource, stored: Stored) -> RowSource:
    """Read an array as labels: [N] or [N, 1] (integers, or floats with NaN for unknown), or [N, C] of 0 and 1."""
    single = stored.shape[1:] in ((), (1,))
    if len(stored.shape) not in (1, 2) or stored.dtype.kind not in ("iuf" if single else "iub"):
        expected = "integers [num_vertices], or 0 and 1 [num_vertices, num_classes]"
        raise wrong_form(stored, expected, where=rows.file, fix=_FIX_FORM, error=DatasetError)
    return LabelRows(rows=rows, row_shape=() if single else stored.shape[1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRows:
    """A row source over targets of a regression, as float32."""

    rows: RowSource
    "Targets as the file holds them."
    row_shape: tuple[int, ...]
    "() for one target per vertex, (T,) for several."

    @property
    def file(self) -> str:
        """Name of the targets in errors."""
        return self.rows.file

    @property
    def dtype(self) -> str:
        """Type in which the targets are stored."""
        return "float32"

    def chunks(self) -> Iterator[RowChunk]:
        """Targets as numbers [n], or [n, T]; whoever stores them checks that they are finite."""
        for chunk in self.rows.chunks():
            yield chunk if self.row_shape else replace(chunk, rows=chunk.rows.reshape(len(chunk.rows)))


def target_rows(rows: RowSource, stored: Stored) -> RowSource:
    """Read an array as targets: numbers [N] or [N, 1], or [N, T]."""
    shape = stored.shape[1:]
    if len(stored.shape) not in (1, 2) or 0 in shape or stored.dtype.kind not in "iuf":
        expected = "numbers [num_vertices], or [num_vertices, num_targets]"
        raise wrong_form(stored, expected, where=rows.file, fix=_FIX_FORM, error=DatasetError)
    return TargetRows(rows=rows, row_shape=() if shape == (1,) else shape)


def feature_dtype(stored: Stored, where: str) -> str:
    """The dtype in which features [N, F] are stored: their own if it is floating point, else float32."""
    if len(stored.shape) != 2 or stored.dtype.kind not in "fiub":
        expected = "numbers [num_vertices, num_features]"
        raise wrong_form(stored, expected, where=where, fix=_FIX_FORM, error=DatasetError)
    return stored.dtype.name if stored.dtype.name in ("float16", "float32", "float64") else "float32"


def masks_of(split_ids: Mapping[str, Sequence[RowSource]], num_vertices: int) -> dict[str, RowSource]:
    """Masks, bool [num_vertices], from the integer ids [n] of each split."""
    require_memory(
        num_vertices * len(split_ids),
        where=f"{len(split_ids)} splits of {num_vertices} vertices",
        fix="Check the number of vertices that the source states.",
    )
    masks: dict[str, RowSource] = {}
    for name, sources in split_ids.items():
        mask = np.zeros(num_vertices, dtype=np.bool_)
        for source in sources:
            for chunk in source.chunks():
                where = numbered(source.file, "row", chunk.first_row)
                check_ids(chunk.rows, num_vertices, f"split '{name}': vertex", where=where, error=DatasetError)
                mask[chunk.rows] = True
        files = ", ".join(source.file for source in sources)
        masks[name] = ArrayRows(array=mask, file=files, dtype="bool", chunk_rows=2**24)
    return masks


def in_order_of_ids(chunks: Iterable[RowChunk], file: str) -> Iterator[Array]:
    """Rows of chunks in the order of their ids, which are 0 to n - 1; without ids, in the order of the chunks.

    Memory holds the rows from the first one on that is out of order.
    """
    num_rows, held = 0, list[RowChunk]()
    for chunk in chunks:
        if held or (chunk.ids is not None and (chunk.ids != np.arange(num_rows, num_rows + len(chunk.ids))).any()):
            held.append(chunk)
            # They are joined before they are taken in order.
            require_memory(sum(each.rows.nbytes for each in held), where=file, fix="Sort the rows by id.")
        else:
            num_rows += len(chunk.rows)
            yield chunk.rows
    if held:
        ids = np.concatenate([chunk.ids for chunk in held if chunk.ids is not None])
        order = np.argsort(ids, kind="stable")
        at = first_true(ids[order] != np.arange(num_rows, num_rows + len(ids)))
        if at is not None:
            found, expected = ids[order[at]], num_rows + at
            problem = f"stands where {expected} is missing" if found > expected else "stands twice"
            raise DatasetError(
                "ids of rows are not those of the vertices",
                value=f"{found} {'is negative' if found < 0 else problem}; there are {num_rows + len(ids)} rows",
                where=f"{file}, row {held[0].first_row + order[at]}",
                fix="Give each vertex one row, with its id from 0 as in the edges; an unknown label is -1.",
            )
        rows = np.concatenate([chunk.rows for chunk in held])
        for part in np.array_split(order, len(held)):
            yield rows[part]


def as_stored(rows: Array, dtype: str, what: str, *, where: Where, fix: str = NOT_A_NUMBER) -> Array:
    """Cast rows to the dtype in which they are stored; refuse values that are not finite, or too large for it.

    ``what`` is the subject of the error's text, ``fix`` its advice.
    """
    with np.errstate(over="ignore"):
        stored = rows.astype(dtype, copy=False)
    if rows.dtype.kind == "f" and stored.dtype.kind == "f":
        wrong = ~np.isfinite(stored)
        at = first_true(wrong)
        if at is not None:
            column = first_true(wrong[at].reshape(-1)) or 0
            is_finite = np.isfinite(rows[at].reshape(-1)[column])
            limit = f", beyond {dtype}, which ends at {np.finfo(stored.dtype).max:.3g}" if is_finite else ""
            raise not_finite(rows[at], column, what, where=where(at), limit=limit, fix=fix, error=DatasetError)
    return stored
