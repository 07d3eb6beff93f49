"""A hard limit of memory: a control group that a command runs in, and what the kernel counted there.

What a process of the group holds, and the cache of the files that it reads and writes, may not exceed the limit; the cache
makes way, memory of its own cannot, and then the kernel kills. Both versions of control groups are known. Version 1 counts
swap apart, where it counts it at all: on a machine with swap, switch that off.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from bench.workers import ROOT, THREAD_VARIABLES

EVERY_S = 0.5
"Seconds between two samples of a group's memory."
MOST_S = 4 * 3600.0
"Longest that a command runs, in seconds. One that hangs is ended then."
ROOTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))


class Names(NamedTuple):
    limit: str
    events: str
    "File that counts processes killed."
    hits: tuple[str, str]
    "File and key of how often the limit was hit; without a key the file is one number."
    own: tuple[str, ...]
    "Keys in memory.stat of what processes hold themselves, huge pages included."


V1 = Names(
    limit="memory.limit_in_bytes", events="memory.oom_control", hits=("memory.failcnt", ""), own=("total_rss",)
)
V2 = Names(limit="memory.max", events="memory.events", hits=("memory.events", "max"), own=("anon",))


class Ended(NamedTuple):
    status: int
    output: str
    errors: str
    seconds: float
    own_bytes: int
    "Peak memory of its processes without the cache of files, sampled every :data:`EVERY_S`."
    kills: int
    "Processes that the kernel killed for want of memory."
    hits: int
    "How often the limit was hit, and the cache of files had to make way."
    is_late: bool = False

    @property
    def outcome(self) -> str:
        if self.kills:
            return "killed"
        if self.is_late:
            return "too slow"
        return "ok" if self.status == 0 else f"failed ({self.status})"


def drop_cached(folder: Path) -> None:
    """Have the system's cache drop the files below a folder: what it holds of them counts for whoever read or wrote them."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                # What is not yet on the disk cannot be dropped.
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


class Limit(AbstractContextManager["Limit"]):
    """A control group with a limit, which is removed with the end of the ``with`` block."""

    def __init__(self, name: str, num_bytes: int, roots: Sequence[Path] = ROOTS) -> None:
        for root in roots:
            for names in (V1, V2):
                group = root / name
                with suppress(OSError):
                    group.mkdir(exist_ok=True)
                    if (group / names.limit).exists():
                        (group / names.limit).write_text(str(num_bytes))
                        self.group, self.names = group, names
                        return
                with suppress(OSError):
                    group.rmdir()
        raise RuntimeError(
            f"No memory controller in {', '.join(map(str, roots))} takes a group. Run as root, or in a container that may."
        )

    def run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, *, timeout_s: float = MOST_S
    ) -> Ended:
        """Run a command in the group, and wait for it, ``timeout_s`` seconds at most."""
        procs = self.group / "cgroup.procs"
        kills, hits = self._kills(), self._hits()
        started = time.monotonic()
        process = subprocess.Popen(
            # The shell enters the group and becomes the command, so that nothing of it runs outside.
            ["sh", "-c", f'echo $$ > "{procs}" && exec "$@"', "sh", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        own_bytes, is_late, output = 0, False, None
        try:
            while output is None:
                try:
                    output, errors = process.communicate(timeout=EVERY_S)
                except subprocess.TimeoutExpired:
                    own_bytes = max(own_bytes, self._own_bytes())
                    if time.monotonic() - started > timeout_s:
                        is_late = True
                        os.killpg(process.pid, signal.SIGKILL)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return Ended(
            status=process.returncode,
            output=output,
            errors=errors[-2000:],
            seconds=time.monotonic() - started,
            own_bytes=own_bytes,
            kills=self._kills() - kills,
            hits=self._hits() - hits,
            is_late=is_late,
        )

    def close(self) -> None:
        """Remove the group; its last process may take a moment to leave it."""
        for _ in range(50):
            try:
                self.group.rmdir()
                return
            except OSError:
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own_bytes(self) -> int:
        stat = _keyed((self.group / "memory.stat").read_text())
        return sum(stat.get(key, 0) for key in self.names.own)

    def _kills(self) -> int:
        return _keyed((self.group / self.names.events).read_text()).get("oom_kill", 0)

    def _hits(self) -> int:
        file, key = self.names.hits
        text = (self.group / file).read_text()
        return _keyed(text).get(key, 0) if key else int(text)


def _keyed(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in text.splitlines())}


def run_limited(
    command: Sequence[str], dataset: Path, num_bytes: int, threads: int, *places: Mapping[str, str]
) -> list[Ended]:
    """Run a command once for each place, all at the same time; a place is more variables of the environment, none by default.

    Every process has a group of its own, and finds no file of the dataset in the cache that another group pays for.
    """
    environment = dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"PYTHONPATH": str(ROOT)}
    drop_cached(dataset)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(places) or 1))
        started = []
        for number, place in enumerate(places or ({},)):
            limit = stack.enter_context(Limit(f"sagann-bench-{os.getpid()}-{number}", num_bytes))
            started.append(pool.submit(limit.run, command, environment | place))
        return [each.result() for each in started]


def generate(folder: Path, counts: Mapping[str, float], *flags: str) -> None:
    """Generate an R-MAT graph of these sizes where it is not there yet."""
    if not folder.exists():
        options = [word for name, count in counts.items() for word in (f"--{name}", str(int(count)))]
        command = [sys.executable, "-m", "sagann", "data", "generate", "rmat", str(folder), *options, *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def print_errors(ended: Iterable[tuple[str, Ended]]) -> None:
    """Print what failed with; the kernel's kills leave no message."""
    for name, each in ended:
        if each.outcome not in ("ok", "killed"):
            print(f"{name}: {each.errors.strip()}", file=sys.stderr)
