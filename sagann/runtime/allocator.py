"""Give freed memory back to the system, where memory is short or stated.

By default the C library keeps freed blocks of up to 32 MiB for later ones, and gaps between them that none fits: on a
graph whose epoch has 180 MiB alive the process grows to 270. Given back, the process is as large as what is alive, and
every block's pages are made anew.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from functools import cache
from pathlib import Path

from sagann.kernels.memory import POOL

# Parameters of mallopt in <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Blocks from this size on are asked of the system one by one.
_LARGE_BYTES = 1 << 20
_STATM = Path("/proc/self/statm")
# So much more than after the last time must have come together to try again.
_WORTH_IT_BYTES = 4 << 20


@cache
def give_back_freed_memory() -> bool:
    """Tell the C library and the pool to return large blocks as soon as they are freed, once per process.

    Returns:
        Whether the C library was told: only the GNU C library can be.
    """
    POOL.close()
    return return_large_blocks()


@cache
def return_large_blocks() -> bool:
    """Tell the C library to return large blocks as soon as they are freed, once per process.

    Returns:
        Whether it was told: only the GNU C library can be.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = [(_M_MMAP_THRESHOLD, _LARGE_BYTES), (_M_TRIM_THRESHOLD, _LARGE_BYTES)]
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)


class HeapGuard:
    """Has the C library give back what it keeps of small blocks, when the process takes more than it may.

    Args:
        budget_bytes: by so much the process's anonymous memory may exceed what it is now.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._is_able = return_large_blocks() and _STATM.exists()
        self._limit_bytes = (_anonymous_bytes() if self._is_able else 0) + budget_bytes

    def check(self) -> None:
        """Look whether the process takes too much, and do what can be done about it."""
        if self._is_able and _anonymous_bytes() > self._limit_bytes:
            ctypes.CDLL(None).malloc_trim(0)
            # What is still there is in use: there is no point in trying again at once.
            self._limit_bytes = max(self._limit_bytes, _anonymous_bytes() + _WORTH_IT_BYTES)


def _anonymous_bytes() -> int:
    """Resident memory of the process that is no file's."""
    _, resident, of_files, *_ = _STATM.read_text().split()
    return (int(resident) - int(of_files)) * mmap.PAGESIZE
