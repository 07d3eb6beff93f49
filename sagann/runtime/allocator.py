"""Give freed memory back to the system, where memory is short or a budget is set.

The C library keeps freed blocks of up to 32 MiB for later, and the gaps between them fit no new block. A process whose epoch
needs 180 MiB grows to 270 MiB. If the C library gives blocks back, the process is as large as the memory in use, but the
system makes the pages of each block anew.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from functools import cache
from pathlib import Path

from sagann.kernels.memory import POOL

# Parameters of mallopt in <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The C library asks the system for each larger block by itself.
_LARGE_BYTES = 1 << 20
_STATM = Path("/proc/self/statm")
# Least growth since the last attempt that makes another attempt worth its time.
_WORTH_IT_BYTES = 8 << 20


@cache
def give_back_freed_memory() -> bool:
    """Make the C library and the pool return large blocks as soon as they are freed; gives whether the C library obeys."""
    POOL.close()
    return return_large_blocks()


@cache
def return_large_blocks() -> bool:
    """Make the C library return large blocks as soon as they are freed; gives whether it obeys. Only the GNU C library can."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(parameter, _LARGE_BYTES) == 1 for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD))


class HeapGuard:
    """Makes the C library give back the small blocks that it keeps, when the process exceeds its budget.

    The budget is of anonymous memory beyond what the process uses now: what the C library and the pool have kept does not count.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._is_able = return_large_blocks() and _STATM.exists()
        self._limit_bytes = budget_bytes
        if self._is_able:
            ctypes.CDLL(None).malloc_trim(0)
            self._limit_bytes += _anonymous_bytes() - POOL.free_bytes

    def check(self) -> None:
        """Trim the heap if the process exceeds its budget."""
        if self._is_able and _anonymous_bytes() > self._limit_bytes:
            ctypes.CDLL(None).malloc_trim(0)
            # The rest is in use, so another attempt at once would gain nothing.
            self._limit_bytes = max(self._limit_bytes, _anonymous_bytes() + _WORTH_IT_BYTES)


@cache
def _statm() -> int:
    """The open file: to open it anew takes much longer than to read it."""
    return os.open(_STATM, os.O_RDONLY)


os.register_at_fork(after_in_child=_statm.cache_clear)


def _anonymous_bytes() -> int:
    """Resident memory of the process without pages of files."""
    _, resident, of_files, *_ = os.pread(_statm(), 256, 0).split()
    return (int(resident) - int(of_files)) * mmap.PAGESIZE
