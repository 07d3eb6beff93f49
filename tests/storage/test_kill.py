"""Imports killed at any instant: nothing half opens, and the next import cleans up and succeeds.

A program imports everything once and forks a child for all that computes, so that it keeps a single thread.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.forks import run_fresh

# Kernels are compiled or loaded before the fork; syncing protects from a power cut, not from a kill.
PROGRAM = """
import json, os, random, shutil, signal, sys, time
from contextlib import suppress
from pathlib import Path
import numpy as np
import sagann.storage.edge_list
from sagann.errors import DatasetError
from sagann.storage import ImportOptions, check_dataset, import_edge_list, open_graph
from sagann.storage.edge_spool import _count_bins
from sagann.storage.external_sort import _split_by_part
from tests.forks import fork

os.fsync = lambda handle: None
count, part = np.zeros(1, np.int64), np.zeros(1, np.uint8)
for ids in (np.zeros(1, np.int64), np.zeros(1, np.int32)):
    _count_bins(ids, 0, 0, count)
_split_by_part(ids, ids, 0, 0, part, count, ids.copy(), ids.copy(), np.empty(0, np.int32))
source, out, replacing = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "True"
CLOSED = 3

def started(work, *given):
    child = fork(idle=1)
    if child == 0:
        code = 1
        with suppress(DatasetError):
            code = CLOSED
            work(*given)
            code = 0
        os._exit(code)
    return child

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def imports(name):
    options = ImportOptions(name=name, overwrite=True, memory_bytes=2**20, symmetrise=True)
    import_edge_list(source / "edges.csv", out, features=source / "x.npy", options=options)

def is_whole(folder, name=None):
    graph = open_graph(folder)
    check_dataset(folder)
    assert name in (None, graph.name)
    assert np.array_equal(graph.topology.indices, np.load(source / "expected.npy"))

# Runs to the end: the first compiles or loads kernels, the fastest is the measure of the instants.
seconds = []
for attempt in range(3):
    began = time.perf_counter()
    assert ended(started(imports, "old")) == 0
    seconds.append(time.perf_counter() - began)
assert ended(started(lambda: np.save(source / "expected.npy", open_graph(out).topology.indices))) == 0
instants, found = random.Random(3), {"killed": 0, "partial": 0}
for attempt in range(8):
    if not replacing:
        shutil.rmtree(out, ignore_errors=True)
    child = started(imports, "new")
    time.sleep(min(seconds) * instants.random())
    os.kill(child, signal.SIGKILL)
    code = ended(child)
    assert code in (0, -signal.SIGKILL)
    found["killed"] += code != 0
    partial = out.parent / f".{out.name}.partial" / "new"
    found["partial"] += partial.exists()
    assert ended(started(is_whole, partial)) in (0, CLOSED)
    assert ended(started(is_whole, out)) in ((0,) if replacing else (0, CLOSED))
    assert ended(started(imports, "next")) == 0
    assert ended(started(is_whole, out, "next")) == 0
    assert [entry.name for entry in out.parent.iterdir()] == [out.name]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("replacing", [False, True])
def test_kill_at_random_instants(tmp_path: Path, *, replacing: bool) -> None:
    source, out = tmp_path / "source", tmp_path / "datasets" / "g"
    source.mkdir()
    out.parent.mkdir()
    edges = np.random.default_rng(0).integers(0, 5000, (40_000, 2))
    np.savetxt(source / "edges.csv", edges, fmt="%d", delimiter=",")
    np.save(source / "x.npy", np.random.default_rng(1).random((5000, 16), dtype=np.float32))
    found = json.loads(run_fresh(PROGRAM, source, out, replacing))
    assert found["killed"] >= 8 // 3
    assert found["partial"] >= 8 // 5
