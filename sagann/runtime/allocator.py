"""What becomes of freed memory: kept in the process for speed, as PyTorch's allocator on CUDA does, or given back.

Kept, blocks are reused; otherwise every epoch touches its activations' pages for the first time, which costs more than
computing some of them. The process holds on to its peak, and to what falls between blocks: on a graph whose epoch has
180 MiB alive it grew to 380. Given back, the process is as large as what is alive.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

# Parameters of mallopt in <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
# Grow the heap in steps of this: untouched, it costs address space only.
_STEP_BYTES = 64 << 20
# Blocks from this size on are asked of the system one by one.
_LARGE_BYTES = 1 << 20


@cache
def keep_freed_memory() -> bool:
    """Tell the C library not to return freed memory, once per process.

    Returns:
        Whether it was told: only the GNU C library can be.
    """
    # -1 is the largest size: never.
    return _set([(_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _STEP_BYTES)])


@cache
def give_back_freed_memory() -> bool:
    """Tell the C library to return large blocks as soon as they are freed, once per process.

    Returns:
        Whether it was told: only the GNU C library can be.
    """
    # By default the threshold grows with the blocks that are freed, so that later ones are kept.
    return _set([(_M_MMAP_THRESHOLD, _LARGE_BYTES), (_M_TRIM_THRESHOLD, _LARGE_BYTES)])


def _set(settings: list[tuple[int, int]]) -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
