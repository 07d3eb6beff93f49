"""Edges on their way into a dataset, in chunks of bounded size.

A chunk knows the file and the row of its first edge, so that an error names the row of a bad edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from sagann.errors import DatasetError
from sagann.storage.rows import Array, Rows

Dtype: TypeAlias = np.dtype[Any]

CHUNK_EDGES = 2**20
"Most edges of a chunk."


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeChunk:
    """Some consecutive edges of an edge source."""

    src: Array
    "Source ids, int32 or int64 [n]."
    dst: Array
    "Destination ids, int32 or int64 [n]."
    data: Mapping[str, Array] = field(default_factory=dict)
    "Edge data [n, ...] by name."
    file: str
    "Name of the file of the ids, for errors."
    first_row: int = 0
    "Row number of the first edge in the file; rows are counted from 1 in CSV files, from 0 in all others."


@dataclass(frozen=True, kw_only=True, slots=True)
class Edges:
    """The edges to import. They are read once, from start to end."""

    chunks: Iterator[EdgeChunk]
    "Chunks of up to about a million edges, whose edge data is checked and cast."
    num_edges: int | None
    "Number of edges, exact or estimated; None where it is unknown before all edges are read."
    columns: Mapping[str, Dtype] = field(default_factory=dict)
    "Dtype, with the shape of one edge's data, of the edge data by name."


def with_data(ends: Iterator[EdgeChunk], num_edges: int | None, data: Mapping[str, Rows]) -> Edges:
    """Edges with edge data that is stored apart from the ids; another number of rows than of edges is refused."""
    streams = {name: _Stream(name, rows) for name, rows in data.items()}

    def chunks() -> Iterator[EdgeChunk]:
        for chunk in ends:
            yield replace(chunk, data={name: rows.take(len(chunk.src)) for name, rows in streams.items()})
        for stream in streams.values():
            stream.finish()

    columns = {name: np.dtype((rows.store_as, rows.row_shape)) for name, rows in data.items()}
    return Edges(chunks=chunks(), num_edges=num_edges, columns=columns)


class _Stream:
    """Rows in portions of any size."""

    def __init__(self, name: str, source: Rows) -> None:
        self._name, self._file, self._chunks = name, source.file, source.chunks()
        self._rows: Array = np.empty((0, *source.row_shape), source.store_as)
        self._num_taken = 0

    def take(self, count: int) -> Array:
        parts, missing = [self._rows[:count]], count - len(self._rows[:count])
        self._rows = self._rows[count:]
        while missing > 0:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise self._uneven(f"ends after {self._num_taken + count - missing} rows, and more edges follow")
            parts.append(chunk.rows[:missing])
            self._rows = chunk.rows[missing:]
            missing -= len(parts[-1])
        self._num_taken += count
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def finish(self) -> None:
        if len(self._rows) or any(len(chunk.rows) for chunk in self._chunks):
            raise self._uneven(f"goes on after {self._num_taken} rows, the number of edges")

    def _uneven(self, problem: str) -> DatasetError:
        return DatasetError(
            f"edges and edge data differ in number: data '{self._name}' {problem} (in {self._file})",
            hint="Provide one row for each edge; a file may be truncated, or of another dataset.",
        )


def edges_of_array(ids: Array, file: str) -> Iterator[EdgeChunk]:
    """Chunks of the edges of an array of integers [2, E]."""
    for first in range(0, ids.shape[1], CHUNK_EDGES):
        src, dst = np.asarray(ids[:, first : first + CHUNK_EDGES]).astype(np.int64)
        yield EdgeChunk(src=src, dst=dst, file=file, first_row=first)
