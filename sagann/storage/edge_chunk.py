"""A run of edges on its way into a dataset, and the checks that every edge passes.

Importers cut their source into chunks of bounded size. A chunk knows the file and the row it came from, so
that whatever is wrong with an edge is reported where a person can look it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sagann.errors import DatasetError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeColumn:
    """Form of one piece of edge data."""

    dtype: str
    "Name of its torch dtype, one that numpy has as well."
    row_shape: tuple[int, ...] = ()
    "Shape of the data of one edge; () for a number."

    @property
    def row_bytes(self) -> int:
        """Bytes for one edge."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.row_shape, dtype=np.int64))


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeChunk:
    """Some edges, in the order of their source."""

    src: Array
    "int32 or int64 [n], source ids."
    dst: Array
    "int32 or int64 [n], destination ids."
    data: Mapping[str, Array] = field(default_factory=dict)
    "Edge data [n, ...] by name."
    file: str
    "Where the edges came from."
    data_files: Mapping[str, str] = field(default_factory=dict)
    "Where edge data came from, by name, if from elsewhere, in rows that are numbered alike."
    first_row: int = 0
    "Row of the first edge, counted as the file's own tools count."


class EdgeSource(Protocol):
    """Where an import takes its edges from; read once, from the start."""

    @property
    def num_edges(self) -> int | None:
        """Number of edges, where it is known (or well estimated) beforehand."""

    @property
    def columns(self) -> Mapping[str, EdgeColumn]:
        """Edge data that every chunk carries."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """The edges; about a million in a chunk."""


LARGEST_TYPE = 2**31 - 2
"""So that the number of types fits 32 bits as well."""


def check_chunk(chunk: EdgeChunk, num_vertices: int | None, columns: Mapping[str, EdgeColumn]) -> None:
    """Check the ids and the edge data of a chunk.

    Args:
        chunk: the edges.
        num_vertices: ids must be below; None where ids tell the number of vertices.
        columns: the form in which the edge data is stored.
    Raises:
        DatasetError: an id is negative or too large, a type negative, a value not finite; names file and row.
    """
    for side, ids in (("source", chunk.src), ("destination", chunk.dst)):
        if len(ids) == 0:
            continue
        if ids.min() < 0 or (num_vertices is not None and ids.max() >= num_vertices):
            wrong = ids < 0 if num_vertices is None else (ids < 0) | (ids >= num_vertices)
            at = int(wrong.argmax())
            limit = "ids start at 0" if ids[at] < 0 else f"there are {num_vertices} vertices, numbered from 0"
            raise DatasetError(
                f"{side} id out of range",
                value=f"{int(ids[at])}, but {limit}",
                where=f"{chunk.file}, row {chunk.first_row + at}",
                fix="Number the vertices from 0 without gaps, or state the right number of vertices.",
            )
    for name, rows in chunk.data.items():
        if rows.size == 0:
            continue
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            at = int((~np.isfinite(rows)).reshape(len(rows), -1).any(axis=1).argmax())
            raise _bad_value(chunk, name, at, "is not finite")
        stored_as = np.dtype(columns[name].dtype)
        if rows.dtype.kind == "f" and stored_as.kind == "f" and rows.dtype.itemsize > stored_as.itemsize:
            largest = np.finfo(stored_as).max
            beyond = (np.abs(rows) > largest).reshape(len(rows), -1).any(axis=1)
            if beyond.any():
                raise _bad_value(
                    chunk, name, int(beyond.argmax()), f"is beyond {stored_as}, which ends at {largest:.3g}"
                )
        if name == "type" and rows.min() < 0:
            raise _bad_value(chunk, name, int((rows < 0).argmax()), "is negative, types are numbered from 0")
        # Types are stored in 32 bits; a larger one is an id of something else.
        if name == "type" and rows.max() > LARGEST_TYPE:
            raise _bad_value(chunk, name, int(rows.argmax()), f"is larger than {LARGEST_TYPE}")


def _bad_value(chunk: EdgeChunk, name: str, at: int, problem: str) -> DatasetError:
    return DatasetError(
        f"edge {name} cannot be used",
        value=f"{chunk.data[name][at]} {problem}",
        where=f"{chunk.data_files.get(name, chunk.file)}, row {chunk.first_row + at}",
        fix="Mend the row, or leave the column out.",
    )
