"""Threads that the code under test leaves behind."""

from __future__ import annotations

import threading
import time

_LASTING = "sagann-kernel"
"""Prefix of the names of threads that stay for the life of a process: those that share kernels, once a kernel was shared."""


def living_threads(prefix: str = "sagann-") -> list[threading.Thread]:
    """Threads whose names begin with ``prefix`` and that end with the work that started them, those that are alive."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(prefix) and not thread.name.startswith(_LASTING)
    ]


def left_threads(prefix: str = "sagann-", *, within_s: float = 30.0) -> list[str]:
    """Names of the threads of ``living_threads`` that have not ended within so many seconds: a busy machine lets them wait."""
    limit_s = time.monotonic() + within_s
    threads = living_threads(prefix)
    for thread in threads:
        thread.join(max(0.0, limit_s - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
