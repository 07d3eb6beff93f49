"""Forks and limits of the processes that tests start.

A forked child has one thread, and every lock that any thread of its parent held at that instant: the C library's, which looks up
names of hosts under one, and PyTorch's too. Nobody releases them in the child, which waits for ever. So a test forks from a program
of its own that has a single thread, and a program that tests start gets its limits from a shell, not from a ``preexec_fn``, which
is a fork of the test process.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_TASKS = Path("/proc/self/task")
_ENDING_S = 2.0
"Seconds in which a thread that has returned is gone."
_ROOT = Path(__file__).parents[1]


def fork(*, idle: int = 0) -> int:
    """``os.fork`` of a process with a single thread.

    Args:
        idle: most threads besides. They wait for work, and hold no lock meanwhile, as those of Numba and PyArrow's allocator.
    Raises:
        AssertionError: another thread is alive.
    """
    _end_tqdm_thread()
    # The system lists a thread for a moment longer than Python does, and on a busy machine that is long.
    limit_s = time.monotonic() + _ENDING_S
    while (num_threads := _num_threads()) > 1 + idle and time.monotonic() < limit_s:
        time.sleep(0.01)
    assert num_threads <= 1 + idle, (
        f"a process with {num_threads} threads may not fork; Python knows {threading.enumerate()}"
    )
    # Neither process looks for garbage among what is there now, and so they go on sharing its pages.
    gc.freeze()
    return os.fork()


def _num_threads() -> int:
    # Where the system does not tell the threads, the tests on Linux find those that are too many.
    return len(list(_TASKS.iterdir())) if _TASKS.exists() else 1


def _end_tqdm_thread() -> None:
    """End the thread that watches bars of progress: PyTorch's tracing starts it, though it shows none."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None and tqdm.tqdm.monitor is not None:
        tqdm.tqdm.monitor.exit()
        tqdm.tqdm.monitor, tqdm.tqdm.monitor_interval = None, 0


def run_fresh(program: str, *arguments: object) -> str:
    """Run a program in an interpreter of its own, which has a single thread at first; what it prints. Its failure is an error."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_group(procs: Path) -> Sequence[str]:
    """What stands before a command that begins in the control group of a file ``cgroup.procs``."""
    return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs))


def with_files_of(num_bytes: int) -> Sequence[str]:
    """What stands before a command whose files may have so many bytes, a multiple of 512."""
    return ("sh", "-c", 'ulimit -f "$0" && exec "$@"', str(num_bytes // 512))
