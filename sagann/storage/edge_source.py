"""Edges on their way into a dataset, in chunks of bounded size, and the checks that each edge passes.

A chunk knows the file and the row of its first edge, so that an error names the row of a bad edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from sagann.errors import DatasetError
from sagann.graph.checks import Where, check_ids, check_types, numbered
from sagann.storage.rows import Array, Rows, as_stored

Dtype: TypeAlias = np.dtype[Any]

CHUNK_EDGES = 2**20
"Most edges of a chunk."
# Ids that are larger than so many times the number of edges (plus 2^20) are refused: they are probably hashes.
_MOST_VERTICES_PER_EDGE = 64


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

    ends: Iterator[EdgeChunk]
    "Chunks of up to about a million edges."
    num_edges: int | None
    "Number of edges, exact or estimated; None where it is unknown before all edges are read."
    data: Mapping[str, Rows] = field(default_factory=dict)
    "Edge data by name that is stored apart from the ids, with one row per edge."
    data_in_chunks: Mapping[str, Dtype] = field(default_factory=dict)
    "Dtype, with the shape of one edge's data, of the edge data in the chunks of ``ends``."

    @property
    def columns(self) -> Mapping[str, Dtype]:
        """Dtype, with the shape of one edge's data, of all edge data by name."""
        apart = {name: np.dtype((rows.store_as, rows.row_shape)) for name, rows in self.data.items()}
        return {**self.data_in_chunks, **apart}

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield the edges with their edge data, checked and cast; refuse edge data whose number of rows is not the number of edges."""
        streams = {
            name: _Stream(name, rows.mapped(partial(_checked_data, name, rows.store_as)))
            for name, rows in self.data.items()
        }
        for chunk in self.ends:
            where = numbered(chunk.file, "row", chunk.first_row)
            data = {
                name: _checked_data(name, form.base.name, chunk.data[name], where)
                for name, form in self.data_in_chunks.items()
            }
            yield replace(
                chunk, data={**data, **{name: rows.take(len(chunk.src)) for name, rows in streams.items()}}
            )
        for stream in streams.values():
            stream.finish()


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


def _checked_data(name: str, dtype: str, rows: Array, where: Where) -> Array:
    if name == "type":
        check_types(rows, None, where=where, error=DatasetError)
    return as_stored(rows, dtype, f"edge data '{name}'", where=where)


def edges_of_array(ids: Array, file: str) -> Iterator[EdgeChunk]:
    """Chunks of the edges of an array of integers [2, E]."""
    for first in range(0, ids.shape[1], CHUNK_EDGES):
        src, dst = np.asarray(ids[:, first : first + CHUNK_EDGES]).astype(np.int64)
        yield EdgeChunk(src=src, dst=dst, file=file, first_row=first)


class CheckedEdges:
    """The edges of a source, with their ids checked.

    ``largest_id`` and ``largest_type`` are those of the edges that were read, -1 without any, and ``num_read`` is their number.

    Args:
        source: the edges.
        num_vertices: ids must be below; None for no upper limit.
        rows_of: the file whose rows were counted for ``num_vertices``, if it is not stated.
    """

    def __init__(self, source: Edges, num_vertices: int | None, rows_of: str = "") -> None:
        self.source, self.num_vertices, self._rows_of = source, num_vertices, rows_of
        self.largest_id = self.largest_type = -1
        self.num_read = 0

    def __iter__(self) -> Iterator[EdgeChunk]:
        for chunk in self.source.chunks():
            where = numbered(chunk.file, "row", chunk.first_row)
            for side, ids in (("source", chunk.src), ("destination", chunk.dst)):
                check_ids(ids, self.num_vertices, side, where=where, rows_of=self._rows_of, error=DatasetError)
                self.largest_id = max(self.largest_id, int(ids.max(initial=-1)))
            if "type" in chunk.data:
                self.largest_type = max(self.largest_type, int(chunk.data["type"].max(initial=-1)))
            self.num_read += len(chunk.src)
            yield chunk

    def count_vertices(self, where: str) -> int:
        """Number of vertices as it is known, or by the ids of all edges."""
        if self.num_vertices is not None:
            return self.num_vertices
        return count_by_ids(self.largest_id, self.num_read, where)


def count_by_ids(largest_id: int, num_edges: int, where: str) -> int:
    """Number of vertices: one more than the largest id. Refuse ids that do not count from 0, such as hashes."""
    if largest_id + 1 > _MOST_VERTICES_PER_EDGE * num_edges + 2**20:
        raise DatasetError(
            f"vertex ids are not numbered from 0: the largest is {largest_id}, with {num_edges} edges (in {where})",
            hint="Number the vertices from 0 without gaps (pandas.factorize does), or state num_vertices "
            "(--num-vertices) if there are so many.",
        )
    return largest_id + 1
