"""Starts the workers of a command with ``--workers N`` on this machine, by the launcher that torchrun runs; and joins them.

The rendezvous listens on the loopback alone: :mod:`torch.distributed` does not authenticate who connects. The launcher passes Ctrl-C and
SIGTERM on, and ends all workers when one fails.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sagann.byte_size import format_bytes
from sagann.cli.failure import BAD_INPUT, INTERRUPTED, OUR_FAULT, TERMINATED
from sagann.cli.options import Given, Shared
from sagann.errors import InputError, WorkerError
from sagann.free_space import require_memory
from sagann.processes import end_with
from sagann.runtime.processor import num_cores

if TYPE_CHECKING:
    from sagann.runtime.workers import Workers

_LOOPBACK = "127.0.0.1"
_WORKER_BYTES = 320 << 20
"Memory of a worker's process before it holds anything of the graph, in bytes."
_NO_LIMIT_S = 10**8
_LAUNCHER = "SAGANN_LAUNCHER"
"Variable of the environment that tells workers the number of the launcher's process."
_CODES = (OUR_FAULT, BAD_INPUT, INTERRUPTED, TERMINATED)
"Exit codes of a worker that has said by itself why it ends."


def launch_workers(arguments: Sequence[str], num_workers: int, *, run_dir: Path, again: str) -> int:
    """Run ``sagann`` with these arguments in several processes, and return the exit code; ``again`` says how to go on after a worker was killed.

    Each worker gets an equal share of the cores, unless ``OMP_NUM_THREADS`` states its number of threads.
    """
    # The number may come from a file of somebody else.
    require_memory(
        num_workers * _WORKER_BYTES,
        where=f"{num_workers} workers",
        hint=f"Start fewer workers: each takes {format_bytes(_WORKER_BYTES)} before it holds anything of the graph.",
    )
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // num_workers)))
    for name in ("agent.server.api", "agent.server.local_elastic_agent", "multiprocessing.api"):
        # A worker says by itself why it ends.
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    store = _loopback_store()
    # After Ctrl-C, workers finish their epoch and save it. torchrun would kill them after half a minute, as older versions always do.
    name = "shutdown_timeout"
    patience: dict[str, Any] = {name: _NO_LIMIT_S} if name in LaunchConfig.__dataclass_fields__ else {}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_workers,
        run_id="sagann",
        rdzv_backend="static",
        rdzv_endpoint=f"{_LOOPBACK}:{store.port}",
        rdzv_configs={"rank": 0},
        max_restarts=0,
        # Workers write to the launcher's own output; torchrun would make a folder for each run, and leave it.
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        **patience,
    )
    os.environ[_LAUNCHER] = str(os.getpid())
    try:
        # Without what lies in the current folder, as the program itself runs.
        elastic_launch(config, sys.executable)("-P", "-m", "sagann", *arguments)
    except SignalException as error:
        return INTERRUPTED if error.sigval is signal.SIGINT else TERMINATED
    except ChildFailedError as error:
        # The launcher has ended by SIGTERM what was left. Times are whole seconds: of workers that ended in the same one, those that another
        # one has ended say so by their codes.
        rank, failure = min(
            error.failures.items(),
            key=lambda each: (each[1].timestamp, each[1].exitcode == -signal.SIGTERM, each[1].exitcode in _CODES),
        )
        if failure.exitcode in _CODES:
            return failure.exitcode
        killed = failure.exitcode < 0
        value = signal.Signals(-failure.exitcode).name if killed else f"exit code {failure.exitcode}"
        is_kill = failure.exitcode == -signal.SIGKILL
        raise WorkerError(
            f"worker {rank} of {num_workers} {'was killed' if killed else 'has failed'}: {value}, process "
            f"{failure.pid} (in {run_dir})",
            hint=f"{'SIGKILL often comes from the system when memory is short. ' if is_kill else ''}{again}",
        ) from error
    finally:
        del os.environ[_LAUNCHER]
    return 0


@contextmanager
def joined(shared: Shared, given: Given, *, timeout_s: float, balance: str) -> Iterator[Workers]:
    """Be one of the workers that this launcher, or torchrun, has started, inside the ``with`` block. The first one alone writes notes."""
    # Imported here: it loads torch.distributed, which the launcher imports after its checks.
    from sagann.runtime.workers import join_workers

    if launcher := os.environ.pop(_LAUNCHER, None):
        # A launcher that is killed ends no worker, and under torchrun there is none.
        end_with(int(launcher))
    with join_workers(timeout_s=timeout_s, balance=balance) as workers:
        if given.get("workers", workers.size) != workers.size:
            raise InputError(
                f"two numbers of workers: --workers {given['workers']}, and torchrun has started "
                f"{workers.size} (in the command line)",
                hint="Leave --workers out under torchrun.",
            )
        shared.quiet = shared.quiet or not workers.is_first
        try:
            yield workers
        except Exception as error:
            error.add_note(f"said by worker {workers.rank} of {workers.size}")
            raise


def _loopback_store() -> Any:
    """The store of the rendezvous. The launcher would make its own, which listens on all interfaces."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = socket.create_server((_LOOPBACK, 0))
    port = listener.getsockname()[1]
    return TCPStore(
        _LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        # The launcher's store of the same port then is this one.
        multi_tenant=True,
        master_listen_fd=listener.detach(),
        timeout=timedelta(seconds=60),
    )
