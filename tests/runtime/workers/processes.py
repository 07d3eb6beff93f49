"""Workers for tests: processes that are forked from one that has imported everything, so that starting some costs milliseconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.workers import free_port
from sagann.runtime.workers import Workers, join_workers
from tests.forks import fork


def run_driver(name: str, folder: Path, *arguments: str, package: str = "tests.runtime.workers") -> None:
    """Run a driver of a package as a program of its own, which writes into ``folder``. What it has started ends with it."""
    command = [sys.executable, "-m", f"{package}.{name}", str(folder), *arguments]
    # GNU OpenMP would end the processes that run parallel kernels after a fork.
    one_thread = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "NUMBA_THREADING_LAYER": "workqueue"}
    process = subprocess.Popen(command, start_new_session=True, env=os.environ | one_thread)
    try:
        code = process.wait(timeout=840)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, "the driver failed; its traceback is above"


def start_workers(work: Callable[[Workers], None], size: int, *, timeout_s: float = 240.0) -> list[int]:
    """Fork workers that run ``work``; their process ids, in the order of the ranks. Exit code 0 is success."""
    port, pids = free_port(), []
    for rank in range(size):
        # The driver may have run parallel kernels.
        pid = fork(idle=1)
        if not pid:
            code = 1
            try:
                address = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in address.items()})
                with join_workers(timeout_s=timeout_s) as workers:
                    work(workers)
                code = 0
            # A fork must never return into the code of its parent.
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        pids.append(pid)
    return pids


def join(pids: list[int]) -> list[int]:
    """Wait for the processes to end; their exit codes, negative for signals."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def run_workers(work: Callable[[Workers], None], size: int) -> None:
    """Run ``work`` at every worker, and require that all of them succeed."""
    codes = join(start_workers(work, size))
    assert codes == [0] * size, f"exit codes {codes}; the tracebacks are above"
