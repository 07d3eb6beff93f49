"""Keep freed memory in the process, as PyTorch's allocator on CUDA does.

By default the C library returns large blocks to the system when they are freed and asks for them anew: every epoch
touches its activations' pages for the first time, which costs more than computing some of them. Kept, they are
reused. The process holds on to its peak.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

# Parameters of mallopt in <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
# Grow the heap in steps of this: untouched, it costs address space only.
_STEP_BYTES = 64 << 20


@cache
def keep_freed_memory() -> bool:
    """Tell the C library not to return freed memory, once per process.

    Returns:
        Whether it was told: only the GNU C library can be.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # -1 is the largest size: never.
    settings = [(_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _STEP_BYTES)]
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
