"""Hold a process back: let it have a share of a core."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup/cpu")
"Where Linux mounts the cpu controller of its first version of cgroups."
PERIOD_S = 0.02
"Seconds in which a process has its share."


@contextmanager
def held_back(pid: int, share: float) -> Iterator[str]:
    """Inside the ``with`` block, a process has a share of a core. What is yielded says how."""
    if os.access(CGROUP / "cgroup.procs", os.W_OK):
        with _quota(pid, share):
            yield f"a quota of {share:g} of a core (cgroup, cpu.cfs_quota_us)"
    else:
        with _duty_cycle(pid, share):
            yield f"a duty cycle: stopped for {1 - share:.0%} of every {PERIOD_S:g} s (SIGSTOP)"


@contextmanager
def _quota(pid: int, share: float) -> Iterator[None]:
    folder = CGROUP / f"sagann-bench-{pid}"
    folder.mkdir()
    try:
        (folder / "cpu.cfs_period_us").write_text(str(int(PERIOD_S * 1e6)))
        (folder / "cpu.cfs_quota_us").write_text(str(int(share * PERIOD_S * 1e6)))
        (folder / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for process in (folder / "cgroup.procs").read_text().split():
            (CGROUP / "cgroup.procs").write_text(process)
        folder.rmdir()


@contextmanager
def _duty_cycle(pid: int, share: float) -> Iterator[None]:
    ended = threading.Event()

    def cycle() -> None:
        while not ended.is_set():
            time.sleep(share * PERIOD_S)
            os.kill(pid, signal.SIGSTOP)
            time.sleep((1 - share) * PERIOD_S)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=cycle)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
