"""Positioned reads and writes: bytes of a file, from or into memory of the caller's choice, from any thread; and whether they are cached."""

from __future__ import annotations

import os
from contextlib import suppress

from sagann.errors import DatasetError

MOST_BYTES = 1 << 30
"Largest number of bytes that one system call reads or writes."
# One byte is read for every _STEP_BYTES; of a long range, only about _MOST_PARTS bytes.
_STEP_BYTES = 1 << 20
_MOST_PARTS = 32


def read_bytes(file: int, left: memoryview, offset: int) -> None:
    """Fill memory with the bytes of an open file from a position on."""
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


def is_cached(file: int, offset: int, num_bytes: int) -> bool:
    """Whether a part of a file is in the page cache, judged by a sample of its bytes.

    False if the part cannot be read, or if the system or the file system cannot tell (only Linux can).
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    last = offset + num_bytes - 1
    step = max(_STEP_BYTES, num_bytes // _MOST_PARTS)
    try:
        return all(
            os.preadv(file, [bytearray(1)], at, os.RWF_NOWAIT) == 1 for at in (*range(offset, last, step), last)
        )
    except OSError:
        return False
