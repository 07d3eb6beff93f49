"""Processes that train together, asked at once, one of which may be held back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from bench.held_back import held_back
from bench.workers import Worker, free_port

COMMAND = (sys.executable, "-m", "bench.balance.worker")


class Group:
    """Workers of one thread each; a context manager, which ends them."""

    def __init__(self, specification: Mapping[str, Any], *, size: int) -> None:
        self._exits = ExitStack()
        self._pool = self._exits.enter_context(ThreadPoolExecutor(size))
        address = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

        def start(rank: int) -> Worker:
            return Worker(COMMAND, {**specification, "threads": 1, "environment": {"RANK": rank, **address}})

        # A worker is ready when the others are.
        self.workers = list(self._pool.map(start, range(size)))
        for worker in self.workers:
            self._exits.callback(worker.close)

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """The answers of all processes, in the order of the ranks."""
        return list(self._pool.map(lambda worker: worker.ask(request), self.workers))

    def hold_back(self, rank: int, share: float) -> str:
        """Let a process have a share of a core from now on. The result says how."""
        return self._exits.enter_context(held_back(self.workers[rank].pid, share))

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()
