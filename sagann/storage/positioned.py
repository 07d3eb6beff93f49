"""Positioned reads and writes: bytes of a file, from or into memory of the caller's choice, from any thread."""

from __future__ import annotations

import os
from contextlib import suppress

from sagann.errors import DatasetError

MOST_BYTES = 1 << 30
"Largest number of bytes that one system call reads or writes."


def read_bytes(file: int, left: memoryview, offset: int) -> None:
    """Fill memory with the bytes of an open file from a position on.

    Raises:
        DatasetError: the file ends too early.
    """
    while left:
        read = os.preadv(file, [left[:MOST_BYTES]], offset)
        if read == 0:
            end, name = min(offset, os.fstat(file).st_size), "an open file"
            with suppress(OSError):
                name = os.readlink(f"/proc/self/fd/{file}")
            raise DatasetError(
                f"file has become shorter: it ends at byte {end}, {offset + len(left) - end} more are needed (in {name})",
                hint="Leave a dataset alone while a run reads it; import it again.",
            )
        left, offset = left[read:], offset + read


def write_bytes(file: int, left: memoryview, offset: int) -> None:
    """Write bytes to an open file from a position on."""
    while left:
        written = os.pwrite(file, left[:MOST_BYTES], offset)
        left, offset = left[written:], offset + written
