"""The program as a process that imports nothing: forks of one process that has imported PyTorch and trained.

A fork is a process like any other, with an id, a group, signals, an exit code and streams of its own. What it does not show is
the program's start, which takes seconds. Its libraries have one thread each, since GNU OpenMP ends a fork that runs parallel
kernels after its parent did.

``python -m tests.cli.warm SOCKET`` is that process. It gets requests as packets: arguments, folder and environment in JSON, with
the descriptors of stdout, of stderr and of a pipe, into which the fork's id goes, and its exit code in the end.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tests.forks import fork
from tests.hosts import Host, enter

_ROOT = Path(__file__).parents[2]
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "NUMBA_THREADING_LAYER": "workqueue",
}
_MOST_BYTES = 1 << 16


class WarmProcess:
    """A fork that runs a command, with what tests use of :class:`subprocess.Popen`."""

    def __init__(self, out: int, err: int, status: int) -> None:
        # Without a buffer, select tells what is left to read.
        self._out, self._err, self._status = out, err, open(status, "rb", buffering=0)  # noqa: SIM115
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._code(0.0)

    def wait(self, timeout: float) -> int:
        """Wait for the exit code."""
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def communicate(self, timeout: float = 240.0) -> tuple[str, str]:
        """What the process has written to stdout and stderr until its end."""
        with ThreadPoolExecutor(2) as threads:
            out, err = (threads.submit(_text, number) for number in (self._out, self._err))
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                # Else reading would not end.
                self.kill()
                raise
            return out.result(), err.result()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            # It may end in between.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait(60.0)
        self._status.close()
        for number in (self._out, self._err):
            os.close(number)

    def _code(self, timeout_s: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            self.returncode = int(self._status.readline())
        return self.returncode


def _text(number: int) -> str:
    with open(number, closefd=False) as stream:
        return stream.read()


class Warm:
    """The process that forks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.warm", str(theirs.fileno())],
            cwd=_ROOT,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": str(_ROOT)},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.DEVNULL,
        )
        theirs.close()

    def start(
        self,
        *arguments: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        module: str = "sagann.__main__",
        host: Host | None = None,
    ) -> WarmProcess:
        """Start ``sagann ARGUMENT ...`` in a fork, or the ``main`` of another module; on a host of its own if one is given."""
        request = {
            "module": module,
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(env or {}),
            "host": None if host is None else host.keeper,
        }
        pipes = [os.pipe() for _ in range(3)]
        theirs = [write for _, write in pipes]
        socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
        for number in theirs:
            os.close(number)
        return WarmProcess(*(read for read, _ in pipes))

    def close(self) -> None:
        """End the process that forks; its forks have ended."""
        self._socket.close()
        self._process.wait(timeout=60)


def _warm_up() -> None:
    """Import and load what training needs."""
    from sagann.cli.main import main
    from sagann.graph import random_split, sbm_graph
    from sagann.runtime.blocks import spill  # noqa: F401
    from sagann.runtime.loading import MiniBatches  # noqa: F401
    from sagann.runtime.streaming import stream  # noqa: F401
    from sagann.storage import save_graph

    graph = sbm_graph(60, num_classes=3, average_degree=6, homophily=0.9, num_features=6, feature_noise=0.3, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        save_graph(random_split(graph, seed=1), f"{folder}/graph")
        options = ("--data", f"{folder}/graph", "--hidden", "8", "--epochs", "1", "--quiet", "--out")
        assert main(["train", *options, f"{folder}/run"]) == 0


def _serve(requests: socket.socket) -> str:
    """Fork for every request; in a fork, the module of its program. The process that forks ends with its socket."""
    # The keepers that wait for the forks are reaped by the system.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        content, descriptors, *_ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not content:
            os._exit(0)
        if not fork(idle=1):
            break
        for number in descriptors:
            os.close(number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    out, err, status = descriptors
    pid = os.fork()
    if pid:
        _keep(pid, out, err, status)
    request = json.loads(content)
    os.setsid()
    os.close(status)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    # As Python opens them for pipes.
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    if request["host"] is not None:
        enter(request["host"])
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    sys.argv = ["sagann", *request["arguments"]]
    return request["module"]


def _keep(pid: int, out: int, err: int, status: int) -> NoReturn:
    """Tell the id of the fork, wait for its end, and tell its exit code."""
    for number in (0, 1, 2, out, err):
        os.close(number)
    os.write(status, f"{pid}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, f"{code}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    _warm_up()
    sys.stdout.flush()
    importlib.import_module(_serve(socket.socket(fileno=int(sys.argv[1])))).main()
