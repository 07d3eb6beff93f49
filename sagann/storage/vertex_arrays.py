"""What vertices carry, on its way into a dataset: arrays in chunks of rows, checked row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sagann.errors import DatasetError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChunk:
    """Some consecutive rows of a vertex array."""

    rows: Array
    "[n, ...] values."
    file: str
    "Where they came from."
    first_row: int = 0
    "Row of the first, counted as the file's own tools count."


class RowSource(Protocol):
    """A vertex array to import; read once, from the start."""

    @property
    def dtype(self) -> str:
        """Name of the torch dtype to store."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row: () for labels, (F,) for features."""

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, in vertex order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayRows:
    """A row source over an array in memory (or mapped), with the checks done by the caller or the core."""

    array: Array
    "[N, ...] values."
    file: str
    "What to call it in errors."
    dtype: str
    "Name of the torch dtype to store."
    chunk_rows: int = 65536
    "Rows in a chunk."

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.array.shape[1:])

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, in slabs."""
        for begin in range(0, len(self.array), self.chunk_rows):
            yield RowChunk(rows=self.array[begin : begin + self.chunk_rows], file=self.file, first_row=begin)


def check_features(chunk: RowChunk) -> None:
    """Refuse features that are not finite; names file and row."""
    if chunk.rows.dtype.kind != "f" or chunk.rows.size == 0:
        return
    wrong = ~np.isfinite(chunk.rows).reshape(len(chunk.rows), -1)
    if wrong.any():
        at = int(wrong.any(axis=1).argmax())
        column = int(wrong[at].argmax())
        value = chunk.rows.reshape(len(chunk.rows), -1)[at, column]
        raise DatasetError(
            "feature is not finite",
            value=f"{value} in column {column}",
            where=f"{chunk.file}, row {chunk.first_row + at}",
            fix="Fill in missing values before importing.",
        )


def check_labels(chunk: RowChunk, num_classes: int | None) -> None:
    """Refuse labels below -1 or not below the stated number of classes; names file and row."""
    rows = chunk.rows
    if rows.ndim == 2:
        wrong = (rows > 1).any(axis=1)
        limit = "multi-label rows hold 0 and 1"
    else:
        wrong = (rows < -1) if num_classes is None else (rows < -1) | (rows >= num_classes)
        limit = "-1 is for unknown" if num_classes is None else f"there are {num_classes} classes, numbered from 0"
    if wrong.any():
        at = int(wrong.argmax())
        raise DatasetError(
            "label out of range",
            value=f"{rows[at].tolist()}, but {limit}",
            where=f"{chunk.file}, row {chunk.first_row + at}",
            fix="Number the classes from 0, and write -1 where a label is unknown.",
        )
