"""Host cores: the cores that this process's own tasks use while accelerators have others."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")
"Where Linux lists the threads of this process."


@contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Inside the ``with`` block, all threads of this process, and those that start there, use these cores alone.

    With no core, and where the system cannot say it, nothing changes.
    """
    if not cores or not _THREADS.is_dir():
        yield
        return
    before = {}
    for thread in map(int, os.listdir(_THREADS)):
        # It may have ended.
        with suppress(OSError):
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, cores)
    try:
        yield
    finally:
        for thread in map(int, os.listdir(_THREADS)):
            with suppress(OSError):
                os.sched_setaffinity(thread, before.get(thread, before[os.getpid()]))
