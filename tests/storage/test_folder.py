"""A folder appears whole or not at all, as does a file, and what dead imports left is removed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sagann.errors import DatasetError
from sagann.storage import open_graph, save_graph
from sagann.storage.folder import new_folder, sync_folder, write_whole
from tests.forks import run_fresh
from tests.storage.conftest import assert_same_graph, make_graph


def write_and(path: Path, action: Callable[[], object]) -> None:
    with new_folder(path, overwrite=False) as folder:
        (folder / "manifest.json").write_text('{"format": "sagann-graph"}')
        action()


def test_what_a_dead_import_left_is_removed_and_a_running_one_is_not_joined(tmp_path: Path) -> None:
    (tmp_path / ".g.partial" / "new").mkdir(parents=True)
    (tmp_path / ".g.partial" / "new" / "indptr.npy").write_bytes(b"\0" * 10)
    (tmp_path / ".h.partial").mkdir()

    def second_import() -> None:
        assert [path.name for path in (tmp_path / ".g.partial" / "new").iterdir()] == ["manifest.json"]
        with pytest.raises(DatasetError, match="another process is writing the dataset"):
            write_and(tmp_path / "g", lambda: None)

    write_and(tmp_path / "g", second_import)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".h.partial", "g"]


def test_place_taken_meanwhile_is_not_taken_over(tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "other")
    with pytest.raises(DatasetError, match="a dataset stands there already"):
        write_and(tmp_path / "g", lambda: (tmp_path / "other").rename(tmp_path / "g"))
    assert_same_graph(open_graph(tmp_path / "g"), make_graph())
    assert [entry.name for entry in tmp_path.iterdir()] == ["g"]


def test_of_a_link_the_dataset_is_replaced(tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "first")
    (tmp_path / "current").symlink_to("first")
    save_graph(make_graph(labels="multi"), tmp_path / "current", overwrite=True)
    assert (tmp_path / "current").is_symlink()
    assert_same_graph(open_graph(tmp_path / "first"), make_graph(labels="multi"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["current", "first"]


DIE_BETWEEN_THE_RENAMES = """
import os, sys
from pathlib import Path
from sagann.storage import save_graph
from tests.storage.conftest import make_graph

rename = Path.rename

def die_after_the_old_one_stepped_aside(source, target):
    rename(source, target)
    if target.name == "old":
        os._exit(0)

Path.rename = die_after_the_old_one_stepped_aside
save_graph(make_graph(), sys.argv[1], overwrite=True)
sys.exit("it was not replaced by two renames")
"""


def test_death_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    save_graph(make_graph(features="none"), tmp_path / "g")
    run_fresh(DIE_BETWEEN_THE_RENAMES, tmp_path / "g")
    assert not (tmp_path / "g").exists()
    assert_same_graph(open_graph(tmp_path / "g"), make_graph(features="none"))
    save_graph(make_graph(), tmp_path / "g", overwrite=True)
    assert_same_graph(open_graph(tmp_path / "g"), make_graph())
    assert [entry.name for entry in tmp_path.iterdir()] == ["g"]


def test_an_interrupt_between_the_two_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_graph(make_graph(features="none"), tmp_path / "g")
    rename = Path.rename

    def interrupt(source: Path, target: Path) -> Path:
        if source.name == "new":
            raise KeyboardInterrupt
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_graph(make_graph(), tmp_path / "g", overwrite=True)
    assert_same_graph(open_graph(tmp_path / "g"), make_graph(features="none"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["g"]


def test_full_disk_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(DatasetError, match=r"disk is full: .*nothing was left behind"),
        new_folder(tmp_path / "g", overwrite=False),
    ):
        raise OSError(28, "No space left on device", str(tmp_path / "g" / "indices.npy"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"

    def fails(*names: object) -> None:
        raise OSError(errno.EIO, "killed here")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="killed here"):
        write_whole(path, b"newer")
    assert path.read_bytes() == b"new"


def test_a_full_disk_leaves_nothing_and_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/\.tmp-x'"):
        write_whole(tmp_path / "x", b"content")
    assert list(tmp_path.iterdir()) == []


def test_every_write_is_synced_before_its_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append((tmp_path / "x").exists()))
    write_whole(tmp_path / "x", b"content")
    assert seen == [False, True]
    sync_folder(tmp_path)
    assert len(seen) == 3


# Syncing protects from a power cut, not from a kill.
PROGRAM = """
import json, os, random, shutil, signal, sys, time
from contextlib import suppress
from pathlib import Path
import numpy as np
import sagann.storage.edge_list
from sagann.errors import DatasetError
from sagann.storage import ImportOptions, check_dataset, import_edge_list, open_graph
from tests.forks import fork

os.fsync = lambda handle: None
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
