"""Processes of accelerators, as the system lists them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    return _parent_of(Path(f"/proc/{pid}")) is not None


def spawned_by(parent: int) -> list[int]:
    """Processes that another one has started by spawning, and that still run."""
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if _parent_of(folder) == parent and b"spawn_main" in (folder / "cmdline").read_bytes()
    ]


def _parent_of(folder: Path) -> int | None:
    """The parent of a process that runs; None for one that has ended."""
    try:
        # The name of a program may have blanks and parentheses.
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def may_mount() -> bool:
    """Whether this user may give a process a /dev/shm of its own."""
    tried = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    return shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True).returncode == 0


def with_own_memory(size: str, *command: str) -> list[str]:
    """A command whose process has a /dev/shm of its own, of a size such as '64k'; where :func:`may_mount`."""
    return ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o "size=$0" tmpfs /dev/shm && exec "$@"', size, *command]


@contextmanager
def memory_of(pid: int) -> Iterator[Callable[[], list[str]]]:
    """Gives the names in the /dev/shm of its own that a process has or will have, also after the process has ended."""
    path = f"/proc/{pid}/root/dev/shm"
    ends_s = time.monotonic() + 60
    while os.stat(path).st_dev == os.stat("/dev/shm").st_dev:
        assert time.monotonic() < ends_s
        time.sleep(0.01)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield lambda: os.listdir(folder)
    finally:
        os.close(folder)


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A group of processes that have so much memory together, by the first version of Linux's cgroups; skips the test where none can be made.

    A process that is written into ``cgroup.procs`` takes new memory from the group; what it has already does not count.
    """
    parent = Path("/sys/fs/cgroup/memory")
    folder = parent / f"sagann-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no group of processes with a limit of memory can be made: {error}")
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            (parent / "cgroup.procs").write_text(pid)
        folder.rmdir()
