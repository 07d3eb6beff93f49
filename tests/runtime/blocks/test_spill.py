"""Spilled blocks: what was put comes back, faults are named, nothing is left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

from sagann.plan.steps import Block
from sagann.runtime.blocks.spill import DiskHost, SpillError, SpillFolder, remove_stale
from tests.other_user import OTHER

AT = Block("value", "x", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64])
def test_what_was_put_last_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    host = DiskHost(SpillFolder(tmp_path))
    whole = torch.arange(60).reshape(5, 12).to(dtype)
    for tensors in ({"": whole}, {"a": whole[:, ::2], "b": whole[:0], "c": whole[2]}, {"": whole[:1]}):
        host.put(AT, tensors)
        found = host.get(AT)
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == dtype
            assert torch.equal(found[name], tensor)


def test_hosts_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    hosts = [DiskHost(folder) for _ in range(3)]
    for number, host in enumerate(hosts):
        host.put(AT, {"": torch.full((4,), number)})
    assert [int(host.get(AT)[""][0]) for host in hosts] == [0, 1, 2]
    hosts[1].close()
    assert len(list(folder.path.glob("*.bin"))) == 2
    del host, hosts
    assert list(folder.path.glob("*.bin")) == []


def test_the_folder_is_removed_when_it_is_closed_or_collected(tmp_path: Path) -> None:
    closed = SpillFolder(tmp_path / "made" / "anew")
    closed.close()
    collected = SpillFolder(tmp_path)
    path = collected.path
    assert path.is_dir()
    del collected
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_what_was_made_above_the_folder_goes_with_it_unless_others_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = SpillFolder(Path("there/a/b/c"))
    monkeypatch.chdir(tmp_path.parent)
    folder.close()
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    folder = SpillFolder(tmp_path / "there" / "a" / "b")
    (tmp_path / "there" / "a" / "mine").touch()
    folder.close()
    assert list((tmp_path / "there").rglob("*")) == [tmp_path / "there" / "a", tmp_path / "there" / "a" / "mine"]


@pytest.mark.parametrize("names", [("by", "by"), ("rank0", "rank1"), (".", "rank1")])
@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_of_several_that_share_what_one_of_them_made_the_last_removes_it(
    names: tuple[str, str], first_leaves_first: bool, tmp_path: Path
) -> None:
    one, other = (SpillFolder(tmp_path / "shared" / name) for name in names)
    if not first_leaves_first:
        one, other = other, one
    one.close()
    assert other.path.is_dir()
    DiskHost(other).put(AT, {"": torch.ones(3)})
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_made_above_its_folder_goes_too(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from sagann.runtime.blocks.spill import SpillFolder\n"
        "folder = SpillFolder(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    for name in ("a", "b"):
        killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "shared" / name)], check=False)
        assert killed.returncode == -signal.SIGKILL
    for name in ("a", "b"):
        remove_stale(tmp_path / "shared" / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "other user's"])
def test_a_lock_that_is_not_our_file_is_refused(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "sagann-spill-x"
    folder.mkdir()
    (folder / "0.bin").touch()
    if kind == "link":
        (tmp_path / "elsewhere").touch()
        (folder / "lock").symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(folder / "lock")
    else:
        if os.geteuid() != 0:
            pytest.skip("only root can act as another user")
        (folder / "lock").touch()
        os.chown(folder / "lock", OTHER, OTHER)
    before = sorted(tmp_path.rglob("*"))
    SpillFolder(tmp_path).close()
    assert sorted(tmp_path.rglob("*")) == before


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from sagann.runtime.blocks.spill import SpillFolder\n"
        "folder = SpillFolder(Path(sys.argv[1])); (folder.path / '0.bin').write_bytes(b'x')\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        ours = SpillFolder(tmp_path)
        # It is alive: its folder stays.
        assert len(list(tmp_path.iterdir())) == 2
        os.kill(process.pid, signal.SIGKILL)
    again = SpillFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {ours.path, again.path}


def test_whenever_a_process_was_killed_what_it_left_is_removed(tmp_path: Path) -> None:
    left = {
        "sagann-spill-made": [],
        "sagann-spill-locked": ["lock"],
        "sagann-spill-used": ["lock", "0.bin", "1.bin"],
        "sagann-removed-by-half": ["1.bin"],
        # Files without a lock: somebody removed it, and the process may be alive.
        "sagann-spill-without": ["0.bin"],
    }
    for name, files in left.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    remove_stale(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["sagann-spill-without"]


@pytest.mark.parametrize("has_lock", [False, True])
def test_a_folder_that_others_remove_while_it_is_made_is_made_anew(
    has_lock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdtemp, flock, rmtree = tempfile.mkdtemp, fcntl.flock, shutil.rmtree
    halted, go_on = Event(), Event()
    made: list[SpillFolder] = []
    maker = Thread(target=lambda: made.append(SpillFolder(tmp_path)))

    def halt() -> None:
        halted.set()
        assert go_on.wait(60)

    def made_folder(prefix: str, dir: Path) -> str:
        path = mkdtemp(prefix=prefix, dir=dir)
        if not has_lock:
            halt()
        return path

    def locked(file: int, operation: int) -> None:
        # Others try a lock, and do not wait for it.
        if has_lock and operation == fcntl.LOCK_EX:
            halt()
        flock(file, operation)

    def removed(path: Path, ignore_errors: bool) -> None:
        # Halfway, the lock is gone and the folder is not.
        (path / "lock").unlink(missing_ok=True)
        go_on.set()
        maker.join(0.2)
        rmtree(path, ignore_errors=ignore_errors)

    with monkeypatch.context() as patches:
        patches.setattr(tempfile, "mkdtemp", made_folder)
        patches.setattr(fcntl, "flock", locked)
        patches.setattr(shutil, "rmtree", removed)
        maker.start()
        assert halted.wait(60)
        (taken,) = tmp_path.iterdir()
        remove_stale(tmp_path)
        go_on.set()
        maker.join(60)
    (folder,) = made
    assert folder.path != taken
    remove_stale(tmp_path)
    assert list(tmp_path.iterdir()) == [folder.path]
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_many_that_start_and_end_at_once_leave_one_another_s_folders_alone(tmp_path: Path) -> None:
    # To locks, threads are what processes are: each opens the file for itself.
    def start_and_end() -> None:
        for _ in range(40):
            folder = SpillFolder(tmp_path)
            file = folder.path / "0.bin"
            file.write_bytes(b"x")
            assert file.read_bytes() == b"x"
            folder.close()

    with ThreadPoolExecutor(max_workers=8) as threads:
        for run in [threads.submit(start_and_end) for _ in range(8)]:
            run.result()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_being_removed_takes_no_more_and_goes_also_when_that_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SpillFolder(tmp_path)
    host = DiskHost(folder)
    host.put(AT, {"": torch.ones(3)})
    with monkeypatch.context() as patches:
        patches.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
        folder.close()
    with pytest.raises(SpillError, match="cannot be written: No such file"):
        host.put(AT, {"": torch.ones(3)})
    (left,) = tmp_path.iterdir()
    assert sorted(each.name for each in left.iterdir()) == ["0.bin", "lock"]
    again = SpillFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [again.path]


def test_too_little_room_is_refused(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    folder.require(0)
    with pytest.raises(
        SpillError,
        match=r"too little room to spill: .*\d+ bytes\)? are free, 1048576\.0 TiB \(1152921504606846976 bytes\) are needed",
    ):
        folder.require(1 << 60)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match="cannot be made"):
        SpillFolder(tmp_path / "file" / "below")
    with pytest.raises(SpillError, match="cannot be made"):
        SpillFolder(tmp_path / "no\0name" / "below")


def test_where_nothing_can_be_locked_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(SpillError, match=f"cannot be made: {os.strerror(errno.ENOLCK)}"):
        SpillFolder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lost", [lambda file: os.truncate(file, 60), Path.unlink])
def test_a_file_that_lost_blocks_does_not_grow_again(lost: Callable[[Path], None], tmp_path: Path) -> None:
    """A block that was lost would be read as zeros."""
    folder = SpillFolder(tmp_path)
    host = DiskHost(folder)
    host.put(AT, {"": torch.ones(100)})
    lost(*folder.path.glob("*.bin"))
    with pytest.raises(SpillError, match=r"cut short: it ends at byte (60|0), (388|448) more are needed"):
        host.put(AT._replace(interval=1), {"": torch.ones(100)})


def test_a_folder_that_vanishes_and_a_file_cut_short(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    host = DiskHost(folder)
    host.put(AT, {"": torch.ones(100)})
    (file,) = folder.path.glob("*.bin")
    os.truncate(file, 60)
    with pytest.raises(SpillError, match="cut short: it ends at byte 60, 388 more are needed"):
        host.get(AT)
    folder.close()
    with pytest.raises(SpillError, match="cannot be read: No such file"):
        host.get(AT)
    with pytest.raises(SpillError, match="cannot be written: No such file"):
        host.put(AT, {"": torch.ones(100)})


@pytest.mark.parametrize("at", [0, 1000, 1099, 1100, 2303])
def test_a_byte_that_differs_is_found_wherever_it_is(at: int, tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    host = DiskHost(folder)
    # Of 1100 bytes, none and 1152; between them lies what nobody reads.
    host.put(AT, {"a": torch.arange(275.0), "b": torch.empty(0), "c": torch.arange(144)})
    (file,) = folder.path.glob("*.bin")
    content = bytearray(file.read_bytes())
    content[at] ^= 0x80
    file.write_bytes(content)
    if at == 1100:
        assert host.get(AT)["c"].equal(torch.arange(144))
        return
    with pytest.raises(
        SpillError, match=r"a spill file is damaged: its checksum is \w{16}, .* is \w{16} \(in '.*bin'"
    ):
        host.get(AT)
    with pytest.raises(SpillError, match="damaged"):
        host.get(AT)
    # What is written anew is sound.
    host.put(AT, {"": torch.ones(3)})
    assert host.get(AT)[""].tolist() == [1, 1, 1]


@pytest.mark.parametrize("at", [0, 79, 80, 399])
def test_a_byte_that_differs_is_found_in_rows_that_were_put_one_after_the_other(at: int, tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    host = DiskHost(folder)
    for rows in (slice(20, 100), slice(0, 20)):
        host.put_rows(AT, rows, torch.ones(rows.stop - rows.start), num_rows=100)
    (file,) = folder.path.glob("*.bin")
    content = bytearray(file.read_bytes())
    content[at] ^= 0x80
    file.write_bytes(content)
    with pytest.raises(SpillError, match="a spill file is damaged"):
        host.get(AT)
    host.put(AT, {"": torch.ones(100)})
    assert host.get(AT)[""].sum() == 100


def test_of_many_readings_some_are_checked(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    host = DiskHost(folder)
    host.put(AT, {"": torch.ones(100)})
    host.get(AT)
    (file,) = folder.path.glob("*.bin")
    file.write_bytes(bytes(file.stat().st_size))
    for _ in range(7):
        host.get(AT)
    with pytest.raises(SpillError, match="damaged"):
        host.get(AT)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")
def test_a_disk_that_fills_up_is_named(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    (folder.path / "0.bin").symlink_to("/dev/full")
    with pytest.raises(SpillError, match="No space left"):
        DiskHost(folder).put(AT, {"": torch.ones(100_000)})


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    host, block = DiskHost(SpillFolder(tmp_path)), Block("value", "x", 0)
    host.put(block, {"": torch.ones(4)})
    host._path.unlink()
    os.mkfifo(host._path)
    with pytest.raises(SpillError, match="a spill file cannot be read: Illegal seek"):
        host.get(block)
    with pytest.raises(SpillError, match="a spill file cannot be written"):
        host.put(block, {"": torch.ones(4)})


def test_a_folder_that_another_process_removes_meanwhile_holds_nothing_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir, folder = os.scandir, tmp_path / "spill"
    folder.mkdir()

    def removed_before(path: Path) -> object:
        if Path(path) == folder:
            folder.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed_before)
    remove_stale(folder)
    assert not folder.exists()
