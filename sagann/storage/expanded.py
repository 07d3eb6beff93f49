"""Gzip files, expanded while they are read, up to a multiple of their size.

A small gzip file can expand without end: a byte of it may stand for a kilobyte. Tables of numbers expand to ten times their size,
and tables of zeros to some hundred times.
"""

from __future__ import annotations

import io
import os
from threading import Lock
from typing import Any, BinaryIO

from sagann.byte_size import format_bytes
from sagann.errors import DatasetError

EXPANSION = 500
"Bytes to which a byte of a gzip file may expand, unless the importer is told otherwise."
FREE_BYTES = 64 * 2**20
"Bytes to which a gzip file of any size may expand."


class Expanded(io.RawIOBase):
    """The content of an open gzip file; more than ``expansion`` bytes for each byte of the file are a DatasetError."""

    def __init__(self, file: BinaryIO, expansion: int) -> None:
        # Imported here: options of imports name the limit above.
        import pyarrow as pa

        self._file, self._expansion, self._num_read = file, expansion, 0
        self._packed_bytes = os.fstat(self._file.fileno()).st_size
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._file, mode="r"), "gzip")
        # A thread of pyarrow may still read when the caller has given up and closes.
        self._lock = Lock()

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes."""
        with self._lock:
            count: int = self._stream.readinto(buffer)
        self._num_read += count
        if self._num_read > FREE_BYTES + self._expansion * self._packed_bytes:
            raise DatasetError(
                "gzip file expands to far more than its size",
                value=f"{format_bytes(self._num_read)} so far from {format_bytes(self._packed_bytes)}, "
                f"at most {self._expansion} times as much is read",
                where=str(self._file.name),
                fix="Look at what it holds (zcat FILE | head); if that is right, raise the limit: "
                "ImportOptions.expansion (--expansion).",
            )
        return count

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if not self.closed:
                self._stream.close()
                self._file.close()
        super().close()
