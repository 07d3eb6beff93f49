"""Contestants in processes of their own, kept alive and asked one at a time.

The parent talks to each over pipes, one line of JSON for a request and one for its answer (the worker's end is
:mod:`bench.standalone.serve`); the output of a worker and its libraries is logged for errors. So contestants
alternate within one run though they need different environments, each process has its own memory, and one that runs out of
memory ends alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from select import select
from typing import Any

ROOT = Path(__file__).parents[1]
"The checkout: where workers start."
RESULTS = ROOT / "bench" / "results"
"Default folder of results."
FIRST_TO_GO = 1000
"The kernel's highest inclination to end a process when memory runs out: a worker goes, never the parent."
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
FAILURES = {"out_of_memory": "out of memory", "unsupported": "unsupported", "error": "failed"}
"Outcomes by the key of a worker's last answer (:mod:`bench.standalone.serve`)."
GRACE_S = 10.0
"Longest wait for the end of a worker that has closed its pipe, in seconds."


def free_port() -> int:
    """A free port of the loopback, outside of the range from which the system assigns ports."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def places_of(size: int, host: str = "127.0.0.1") -> list[dict[str, str]]:
    """The variables of the environment of each of some processes that train together; none where it is alone."""
    address = {"WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": str(free_port())}
    return [{"RANK": str(rank), **address} if size > 1 else {} for rank in range(size)]


def commit() -> str:
    """The checkout's commit, marked where there are changes besides results."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return (git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")) or "unknown"


class WorkerEndedError(Exception):
    """A worker ended before its time.

    Attributes:
        outcome: killed (by the kernel, as a rule for want of memory), out of memory, unsupported, too slow, or failed.
        detail: its last words.
    """

    def __init__(self, outcome: str, detail: str = "") -> None:
        super().__init__(f"{outcome}: {detail}" if detail else outcome)
        self.outcome, self.detail = outcome, detail

    @property
    def last_line(self) -> str:
        return (self.detail.strip().splitlines() or [""])[-1]


class Worker(AbstractContextManager["Worker"]):
    """A worker process, which ends with the ``with`` block."""

    def __init__(
        self, command: Sequence[str], specification: Mapping[str, Any], *, timeout_s: float = 1800.0
    ) -> None:
        self._timeout_s = timeout_s
        # Closed by close(), as the pipes are.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        # Packages that this process was given by a path, for a worker of the same Python.
        given = os.environ.get("PYTHONPATH", "") if command[0] == sys.executable else ""
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), given])))
        threads = str(specification.get("threads", "")) or None
        environment |= dict.fromkeys(THREAD_VARIABLES, threads) if threads else {}
        reading, answers = os.pipe()
        self._answers = os.fdopen(reading, "rb")
        try:
            self._process = subprocess.Popen(
                [*command, json.dumps(specification), str(answers)],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[answers],
                cwd=ROOT,
                env=environment,
                # A group of its own: it goes with all processes that it started.
                start_new_session=True,
            )
        finally:
            os.close(answers)
        try:
            Path(f"/proc/{self._process.pid}/oom_score_adj").write_text(str(FIRST_TO_GO))
            self.ready: dict[str, Any] = self._answer()["ready"]
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        # Where the worker has ended, the other pipe or its exit status shows why.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the worker, and the processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        for pipe in (self._process.stdin, self._answers, self._log):
            with suppress(BrokenPipeError):
                pipe.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        line = self._line()
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
            status = self._process.returncode
            outcome = "killed" if status == -signal.SIGKILL else "failed"
            words = self._last_words()
            self.close()
            raise WorkerEndedError(outcome, f"exit status {status}. {words}")
        answer: dict[str, Any] = json.loads(line)
        for key in FAILURES.keys() & answer:
            self.close()
            raise WorkerEndedError(FAILURES[key], answer[key])
        return answer

    def _line(self) -> bytes:
        # A worker writes an answer as a whole, and no other one before it is asked again.
        if not select([self._answers], [], [], self._timeout_s)[0]:
            self.close()
            raise WorkerEndedError("too slow", f"no answer within {self._timeout_s:g} s")
        return self._answers.readline()

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace").strip()
