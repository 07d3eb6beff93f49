"""Spilled blocks: what was put comes back, faults are named, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sagann.plan.steps import Block
from sagann.runtime.spill import DiskHost, SpillError, SpillFolder

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
    # The parent goes as well where it was made for this, unless somebody else uses it.
    assert not (tmp_path / "made" / "anew").exists()
    shared = SpillFolder(tmp_path / "shared")
    (tmp_path / "shared" / "mine").touch()
    shared.close()
    assert [each.name for each in (tmp_path / "shared").iterdir()] == ["mine"]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from sagann.runtime.spill import SpillFolder\n"
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


def test_too_little_room_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpillError, match=r"bytes are free, \d+ are needed"):
        SpillFolder(tmp_path, needed_bytes=1 << 60)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SpillError, match="too little room"):
        SpillFolder(tmp_path).require(1 << 60)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match="cannot be made"):
        SpillFolder(tmp_path / "file" / "below")


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
