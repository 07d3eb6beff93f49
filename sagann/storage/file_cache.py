"""Whether a part of a file is in the page cache, so that reading it does not wait for a disk."""

from __future__ import annotations

import os

# One byte is read for every _STEP_BYTES; of a long range, only about _MOST_PARTS bytes.
_STEP_BYTES = 1 << 20
_MOST_PARTS = 32


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
