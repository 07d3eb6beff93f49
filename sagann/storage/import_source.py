"""What an import reads: the source of a graph that an importer fills, with its edges in chunks of bounded size.

A chunk knows the file and the row of its first edge, so that an error names the row of a bad edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from sagann.errors import DatasetError, InputError
from sagann.storage.rows import Array, Rows, stored_edge_data

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


def with_data(
    ends: Iterator[EdgeChunk], num_edges: int | None, data: Mapping[str, Rows], num_types: int | None = None
) -> Edges:
    """Edges with edge data that is stored apart from the ids; another number of rows than of edges is refused."""
    data = {name: stored_edge_data(name, rows, num_types) for name, rows in data.items()}
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


READING = "reading edges"
"Stage of an import that reads the edges of the source."
WRITING = "writing "
"Begin of the name of a stage that reads and writes an array; the array's name follows."


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportSource:
    """A graph to import."""

    name: str
    "Name of the source."
    description: str
    "Origin of the data in words, for the manifest and for errors."
    edges: Edges
    "The edges."
    undirected_once: bool = False
    "Whether the graph is undirected and each edge is stored once, so that its reverse must be added."
    arrays: Mapping[str, Rows] = field(default_factory=dict)
    "Arrays of vertices and of graphs as they are read, by the names of their files in a dataset (:func:`sagann.storage.rows.stored`)."
    num_vertices: int | None = None
    "Number of vertices; None where the source does not state it."
    stated: Mapping[str, Any] = field(default_factory=dict)
    """Names, and numbers of classes and so on, by their names in a manifest (:data:`sagann.storage.manifest.STATED`). No label or type exceeds a
    number; what is missing, or None, is counted."""


@contextmanager
def naming(source: ImportSource) -> Iterator[None]:
    """Turn errors about the whole graph into DatasetErrors that name the source."""
    try:
        yield
    except InputError as error:
        raise DatasetError(f"{source.description}: {error.message}", hint=error.hint) from error
