"""Edges spilled to a temporary file: appended in blocks, read back block by block or whole.

A block holds its columns one after the other (source ids, destination ids, edge data), so a column of a block
is one contiguous read. The list of blocks stays in memory: a few bytes for a million edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sagann.storage.edge_source import EdgeColumn

Array = np.ndarray[Any, Any]


class EdgeRun:
    """A temporary file of edges.

    Args:
        path: file to make.
        columns: form of each column.
    """

    def __init__(self, path: Path, columns: Sequence[EdgeColumn]) -> None:
        self._path = path
        self._columns = tuple(columns)
        self._blocks: list[int] = []
        self._file: BinaryIO | None = None
        self.num_edges = 0

    def append(self, columns: Sequence[Array]) -> None:
        """Append one block; columns are cast to their form."""
        count = len(columns[0])
        if count == 0:
            return
        if self._file is None:
            self._file = self._path.open("wb", buffering=0)
        for form, column in zip(self._columns, columns, strict=True):
            data = np.ascontiguousarray(column, dtype=form.dtype).reshape(-1).view(np.uint8).data
            while len(data):
                data = data[self._file.write(data) :]
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
        with self._path.open("rb", buffering=0) as file:
            for count in self._blocks:
                block = self._empty(count)
                for column in block:
                    _read_into(file, column)
                yield block

    def load(self) -> list[Array]:
        """Read everything at once, as a list of columns."""
        self.close()
        whole = self._empty(self.num_edges)
        if not self._blocks:
            return whole
        with self._path.open("rb", buffering=0) as file:
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

    def _empty(self, count: int) -> list[Array]:
        return [np.empty((count, *form.row_shape), dtype=form.dtype) for form in self._columns]


def _read_into(file: BinaryIO, column: Array) -> None:
    data = column.reshape(-1).view(np.uint8).data
    while len(data):
        count = file.readinto(data)  # type: ignore[attr-defined]
        if not count:
            raise OSError(f"temporary file {file.name} ends early")
        data = data[count:]
