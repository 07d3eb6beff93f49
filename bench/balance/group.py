"""Processes that train together, asked at once, one of which may be held back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from bench.held_back import held_back
from bench.workers import Worker, free_port

COMMAND = (sys.executable, "-m", "bench.balance.worker")


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
        return self._exits.enter_context(held_back(self.workers[rank].pid, share))

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()
        for worker in self.workers:
            worker.close()
        self._pool.shutdown()
