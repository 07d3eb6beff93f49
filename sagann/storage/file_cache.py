"""Whether a part of a file is in the page cache, so that reading it does not wait for a disk."""

from __future__ import annotations

import os

# One byte is read of every _STEP_BYTES, or of every part if that gives more than _MOST_PARTS parts.
_STEP_BYTES = 1 << 20
_MOST_PARTS = 32


def is_cached(file: int, offset: int, num_bytes: int) -> bool:
    """Whether a part of a file is in the page cache, judged by some of its bytes.

    False where the system or the file system does not tell (only Linux does), or the part cannot be read.
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
