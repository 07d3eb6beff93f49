"""Processes that train together, asked at once, one of which may be held back."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.workers import Worker, free_port

COMMAND = (sys.executable, "-m", "bench.balance.worker")
CGROUP = Path("/sys/fs/cgroup/cpu")
"Where Linux mounts the cpu controller of its first version of cgroups."
PERIOD_S = 0.1
"Length of a period, of which a worker that is held back gets its share."


class Group:
    """Workers, or one process alone; a context manager, which ends them.

    Args:
        specification: what :mod:`bench.balance.worker` trains.
        size: number of processes.
        threads: threads of each.
    """

    def __init__(self, specification: Mapping[str, Any], *, size: int, threads: int) -> None:
        self.size = size
        self._pool, self._exits = ThreadPoolExecutor(size), ExitStack()
        address = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

        def start(rank: int) -> Worker:
            environment = {} if size == 1 else {"RANK": rank, **address}
            return Worker(COMMAND, {**specification, "threads": threads, "environment": environment})

        # A worker is ready when the others are.
        self.workers = list(self._pool.map(start, range(size)))

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """The answers of all processes, in the order of the ranks."""
        return list(self._pool.map(lambda worker: worker.ask(request), self.workers))

    def hold_back(self, rank: int, share: float) -> str:
        """Let a process have a share of a core from now on. The result says how."""
        pid = self.workers[rank].pid
        if os.access(CGROUP / "cgroup.procs", os.W_OK):
            self._exits.enter_context(_quota(pid, share))
            return f"a quota of {share:g} of a core (cgroup, cpu.cfs_quota_us)"
        self._exits.enter_context(_duty_cycle(pid, share))
        return f"a duty cycle: stopped for {1 - share:.0%} of every {PERIOD_S:g} s (SIGSTOP)"

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()
        for worker in self.workers:
            worker.close()
        self._pool.shutdown()


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
