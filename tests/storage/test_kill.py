"""Imports killed at any instant: nothing half opens, and the next import cleans up and succeeds.

A small server process imports everything once and forks a child for every import, which is cheap and, unlike
a fork of the test process, safe: the server has started no threads of its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sagann.errors import DatasetError
from sagann.storage import check_dataset, dataset_info, open_graph

# Kernels are compiled or loaded before the fork; syncing protects from a power cut, not from a kill.
SERVER = """
import os, sys
import numpy as np
import sagann.storage.edge_list
from sagann.storage import ImportOptions, import_edge_list
from sagann.storage.edge_spool import _count_bins
from sagann.storage.external_sort import _split_by_part
from tests.forks import fork

os.fsync = lambda handle: None
count, part = np.zeros(1, np.int64), np.zeros(1, np.uint8)
for ids in (np.zeros(1, np.int64), np.zeros(1, np.int32)):
    _count_bins(ids, 0, 0, count)
_split_by_part(ids, ids, 0, 0, part, count, ids.copy(), ids.copy(), np.empty(0, np.int32))

print("ready", flush=True)
for line in sys.stdin:
    source, out, name, overwrite = line.split()
    child = fork(idle=1)
    if child == 0:
        options = ImportOptions(name=name, overwrite=overwrite == "1", memory_bytes=2**20, symmetrise=True)
        import_edge_list(source, out, features=source.replace("edges.csv", "x.npy"), options=options)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ImportServer:
    """Starts imports in processes of their own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            # So NumPy starts no threads. PyArrow's allocator has one.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.read() == "ready"

    def read(self) -> str:
        return self.process.stdout.readline().strip()

    def start(self, source: Path, out: Path, name: str, *, overwrite: bool = False) -> int:
        self.process.stdin.write(f"{source} {out} {name} {int(overwrite)}\n")
        self.process.stdin.flush()
        return int(self.read())

    def end(self) -> int:
        return int(self.read())


@pytest.fixture(scope="module")
def server() -> Iterator[ImportServer]:
    started = ImportServer()
    yield started
    started.process.communicate()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    edges = np.random.default_rng(0).integers(0, 5000, (40_000, 2))
    np.savetxt(folder / "edges.csv", edges, fmt="%d", delimiter=",")
    np.save(folder / "x.npy", np.random.default_rng(1).random((5000, 16), dtype=np.float32))
    return folder / "edges.csv"


@pytest.mark.slow
@pytest.mark.parametrize("replacing", [False, True])
def test_kill_at_random_instants(tmp_path: Path, server: ImportServer, source: Path, *, replacing: bool) -> None:
    out = tmp_path / "g"
    # Runs to the end: the first compiles or loads kernels, the fastest is the measure of the instants.
    seconds = []
    for attempt in range(3):
        began = time.perf_counter()
        server.start(source, out, "old", overwrite=attempt > 0)
        assert server.end() == 0
        seconds.append(time.perf_counter() - began)
    whole_s = min(seconds)
    expected = open_graph(out).topology.indices.tolist()
    instants = random.Random(3)
    killed = found_partial = 0
    for attempt in range(num_attempts := 8):
        if not replacing and out.exists():
            for file in out.iterdir():
                file.unlink()
            out.rmdir()
        child = server.start(source, out, f"new{attempt}", overwrite=True)
        time.sleep(whole_s * instants.random())
        # The server reaps the child when it ends, so a child that is gone is an import that succeeded.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        code = server.end()
        killed += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL)
        partial = tmp_path / ".g.partial" / "new"
        found_partial += partial.exists()
        _assert_whole_or_closed(partial, expected)
        if replacing:
            assert open_graph(out).topology.indices.tolist() == expected
        if out.exists():
            _assert_whole_or_closed(out, expected)
        server.start(source, out, "next", overwrite=True)
        assert server.end() == 0
        assert dataset_info(out)["name"] == "next"
        assert [entry.name for entry in tmp_path.iterdir()] == ["g"]
    assert killed >= num_attempts // 3
    assert found_partial >= num_attempts // 5


def _assert_whole_or_closed(folder: Path, expected: list[int]) -> None:
    try:
        graph = open_graph(folder)
    except DatasetError:
        return
    check_dataset(folder)
    assert graph.topology.indices.tolist() == expected
