"""The process that started this one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have Linux kill this process when its parent ends, also while it computes or is stopped. Elsewhere nothing happens.

    Args:
        parent: number of the parent; if another process is, the parent has ended, and so does this process.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
