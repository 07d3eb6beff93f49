"""The process that started this one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import torch

from sagann.errors import InputError

_PR_SET_PDEATHSIG = 1
_computes: int | None = None
"Process that was the first to compute on several threads; its forks have this number too."


def require_own_threads() -> None:
    """Refuse to compute in a fork of a process that has computed: it has none of OpenMP's threads, and would wait for them for ever.

    A process that computes on one thread needs none.
    """
    global _computes
    if torch.get_num_threads() == 1:
        return
    if _computes is None:
        _computes = os.getpid()
    if _computes != os.getpid():
        raise InputError(
            f"a forked process has none of its parent's threads: process {_computes} had computed on "
            f"{torch.get_num_threads()} threads when this one was forked (in process {os.getpid()})",
            hint="Start processes with multiprocessing.get_context('spawn'), or fork before anything is computed.",
        )


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
