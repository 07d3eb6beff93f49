"""Edges on their way into a dataset, in chunks of bounded size, and the checks that each edge passes.

A chunk knows the file and the row of its first edge, so that an error names the row of a bad edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from sagann.errors import DatasetError
from sagann.graph.checks import check_ids, check_types, numbered
from sagann.storage.rows import Array, RowChunk, Rows, as_stored

CHUNK_EDGES = 2**20
"Most edges of a chunk."


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeColumn:
    """Dtype and shape of one column of edges: ids, or one piece of edge data."""

    dtype: str
    "Name of the dtype, one that torch and NumPy both have."
    row_shape: tuple[int, ...] = ()
    "Shape of the data of one edge; () for a number."

    @property
    def row_bytes(self) -> int:
        """Number of bytes per edge."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.row_shape, dtype=np.int64))


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
    data_places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    "File and first row of edge data that is stored apart from the ids, by name of the edge data."


@dataclass(frozen=True, kw_only=True, slots=True)
class Edges:
    """The edges to import. They are read once, from start to end."""

    ends: Iterator[EdgeChunk]
    "Chunks of up to about a million edges."
    num_edges: int | None
    "Number of edges, exact or estimated; None where it is unknown before all edges are read."
    data: Mapping[str, Rows] = field(default_factory=dict)
    "Edge data by name that is stored apart from the ids, with one row per edge."
    data_in_chunks: Mapping[str, EdgeColumn] = field(default_factory=dict)
    "Dtype and shape of the edge data in the chunks of ``ends``."

    @property
    def columns(self) -> Mapping[str, EdgeColumn]:
        """Dtype and shape of the edge data, by name."""
        apart = {
            name: EdgeColumn(dtype=rows.store_as, row_shape=rows.row_shape) for name, rows in self.data.items()
        }
        return {**self.data_in_chunks, **apart}

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield the edges with their edge data; refuse edge data whose number of rows is not the number of edges."""
        streams = {name: _Stream(name, rows) for name, rows in self.data.items()}
        for chunk in self.ends:
            places = {name: (rows.file, streams[name].next_row) for name, rows in self.data.items()}
            data = {name: stream.take(len(chunk.src)) for name, stream in streams.items()}
            yield replace(chunk, data={**chunk.data, **data}, data_places=places)
        for stream in streams.values():
            stream.finish()


class _Stream:
    """Rows in portions of any size."""

    def __init__(self, name: str, source: Rows) -> None:
        self._name, self._file, self._chunks = name, source.file, source.chunks()
        first = next(self._chunks, RowChunk(rows=np.empty((0, *source.row_shape), source.dtype)))
        self._rows, self.next_row, self._num_taken = first.rows, first.first_row, 0
        """``next_row`` is the row number of the next row."""

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
        self.next_row += count
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


def checked_chunk(
    chunk: EdgeChunk, num_vertices: int | None, columns: Mapping[str, EdgeColumn], rows_of: str = ""
) -> EdgeChunk:
    """Check the ids and the edge data of a chunk, and cast the edge data to the dtypes of ``columns``.

    Ids must be below ``num_vertices``, None for no upper limit; ``rows_of`` names the file whose rows were counted for it.
    """
    where = numbered(chunk.file, "row", chunk.first_row)
    check_ids(chunk.src, num_vertices, "source", where=where, rows_of=rows_of, error=DatasetError)
    check_ids(chunk.dst, num_vertices, "destination", where=where, rows_of=rows_of, error=DatasetError)
    data = {}
    for name, rows in chunk.data.items():
        file, first_row = chunk.data_places.get(name, (chunk.file, chunk.first_row))
        where = numbered(file, "row", first_row)
        if name == "type":
            check_types(rows, None, where=where, error=DatasetError)
        data[name] = as_stored(rows, columns[name].dtype, f"edge data '{name}'", where=where)
    return replace(chunk, data=data)
