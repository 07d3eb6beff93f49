"""Edges spilled to a temporary file: appended in blocks, read back block by block or whole.

A block holds its columns one after the other (source ids, destination ids, edge data), so a column of a block
is one contiguous read. The list of blocks stays in memory: a few bytes for a million edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BufferedReader, BufferedWriter
from pathlib import Path

import numpy as np

from sagann.storage.edge_source import EdgeColumn
from sagann.storage.row_source import Array


class EdgeRun:
    """A temporary file of edges, with a form for each column."""

    def __init__(self, path: Path, columns: Sequence[EdgeColumn]) -> None:
        self._path = path
        self._columns = tuple(columns)
        self._blocks: list[int] = []
        self._file: BufferedWriter | None = None
        self.num_edges = 0

    def append(self, columns: Sequence[Array]) -> None:
        """Append one block; columns are cast to their form."""
        count = len(columns[0])
        if count == 0:
            return
        if self._file is None:
            self._file = self._path.open("wb")
        for form, column in zip(self._columns, columns, strict=True):
            self._file.write(np.ascontiguousarray(column, dtype=form.dtype).data)
        self._blocks.append(count)
        self.num_edges += count

    def close(self) -> None:
        """End writing; the file stays to be read."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def blocks(self) -> Iterator[list[Array]]:
        """Read the blocks, each a list of columns, in the order they were written."""
        self.close()
        if not self._blocks:
            return
        with self._path.open("rb") as file:
            for count in self._blocks:
                block = empty_edges(self._columns, count)
                for column in block:
                    _read_into(file, column)
                yield block

    def load(self) -> list[Array]:
        """Read everything at once, as a list of columns."""
        self.close()
        whole = empty_edges(self._columns, self.num_edges)
        if not self._blocks:
            return whole
        with self._path.open("rb") as file:
            begin = 0
            for count in self._blocks:
                for column in whole:
                    _read_into(file, column[begin : begin + count])
                begin += count
        return whole

    def delete(self) -> None:
        """Remove the file."""
        self.close()
        self._path.unlink(missing_ok=True)


def empty_edges(columns: Sequence[EdgeColumn], count: int) -> list[Array]:
    """Uninitialised arrays for some edges, one for each column."""
    return [np.empty((count, *form.row_shape), dtype=form.dtype) for form in columns]


def _read_into(file: BufferedReader, column: Array) -> None:
    if file.readinto(column.data) != column.nbytes:
        raise OSError(f"temporary file {file.name} ends early")
