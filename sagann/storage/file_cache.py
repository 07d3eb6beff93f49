"""File cache: whether the system has a part of a file in memory, so that nobody waits who reads it."""

from __future__ import annotations

import os

# Looked at: a byte of each of so many bytes, or of each of so many equal parts.
_STEP_BYTES = 1 << 20
_MOST_PARTS = 32


def is_cached(file: int, offset: int, num_bytes: int) -> bool:
    """Whether a part of a file can be read at once, by a look at some of its bytes.

    Only Linux tells, and not of every file system; what does not tell, or cannot be read, is not cached.

    Args:
        file: its descriptor.
        offset: of the part.
        num_bytes: of the part.
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
