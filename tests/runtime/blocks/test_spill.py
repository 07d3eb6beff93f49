"""Blocks that go to files and come back, and rows that hosts pick from memory and files."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, zeros

from sagann.kernels.packed import Layout
from sagann.plan.steps import FILES, UNLIMITED, Block, Plan
from sagann.runtime.blocks.host import DiskHost, Host, Parts, RamHost
from sagann.runtime.blocks.residents import Residents
from sagann.runtime.blocks.spill import Scratch, SpillError, require_room, unnamed_file
from sagann.runtime.device.streams import PinnedPool
from tests.runtime.device.late_streams import LateStreams

AT = Block("value", "x", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_was_put_last_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    # Where the folder does not exist, the nearest one above it serves.
    host = DiskHost(tmp_path / "not" / "there")
    other = DiskHost(tmp_path)
    whole = torch.arange(60).reshape(5, 12).to(dtype)
    for tensors in ({"": whole}, {"a": whole[:, ::2], "b": whole[:0], "c": whole[2]}, {"": whole[:1]}):
        host.put(AT, tensors)
        other.put(AT, {"": whole[1:]})
        found = host.get(AT).views()
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == dtype
            assert torch.equal(found[name], tensor)
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_is_closed_gives_its_room_back_and_may_be_used_again(tmp_path: Path) -> None:
    host = DiskHost(tmp_path)
    open_files = len(os.listdir("/proc/self/fd"))
    host.put(AT, {"": torch.ones(100)})
    assert len(os.listdir("/proc/self/fd")) == open_files + 1
    host.close()
    assert len(os.listdir("/proc/self/fd")) == open_files
    host.put(AT, {"": torch.zeros(100)})
    assert host.get(AT).views()[""].sum() == 0


def test_too_little_room_is_refused(tmp_path: Path) -> None:
    require_room(tmp_path / "not" / "there", 0)
    with pytest.raises(
        SpillError,
        match=r"too little room to spill: .*\d+ bytes\)? are free, 1048576\.0 TiB \(1152921504606846976 bytes\) are needed",
    ):
        require_room(tmp_path, 1 << 60)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match=r"cannot be used: Not a directory .in '.*file/below'"):
        unnamed_file(tmp_path / "file" / "below")

    def refused(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patches:
        patches.setattr(Path, "exists", refused)
        with pytest.raises(SpillError, match=rf"Permission denied .in '{tmp_path}'"):
            Scratch(tmp_path)((1 << 20,), torch.float32)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")
def test_a_disk_that_fills_up_or_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 (the host closes it)
    monkeypatch.setattr("sagann.runtime.blocks.host.unnamed_file", lambda folder: full)
    monkeypatch.setattr(os, "ftruncate", lambda file, size: None)
    host = DiskHost(tmp_path)
    with pytest.raises(SpillError, match=f"cannot be written: No space left on device .in '{tmp_path}'"):
        host.put(AT, {"": torch.ones(100_000)})
    # The file is open for writing alone.
    for read in (host.get, lambda block: host.pick(block, torch.tensor([5]))):
        with pytest.raises(SpillError, match=f"cannot be read: Bad file descriptor .in '{tmp_path}'"):
            read(AT)


def test_an_array_lies_in_a_file_without_a_name(tmp_path: Path) -> None:
    rows = Scratch(tmp_path / "not" / "there yet")((1 << 19, 3), torch.int32)
    rows.copy_(torch.arange(3 << 19).reshape(-1, 3))
    assert rows[-1].tolist() == [(3 << 19) - 3, (3 << 19) - 2, (3 << 19) - 1]
    assert list(tmp_path.iterdir()) == []
    address = rows.data_ptr()
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    (path,) = (
        each[5]
        for each in maps
        if len(each) == 6 and int(each[0].split("-")[0], 16) <= address < int(each[0].split("-")[1], 16)
    )
    # As Linux writes a file that was unlinked.
    assert path.startswith(str(tmp_path))
    assert path.endswith("(deleted)")


def test_small_arrays_lie_in_memory(tmp_path: Path) -> None:
    assert Scratch(tmp_path)((0, 5), torch.float32).shape == (0, 5)
    assert Scratch(tmp_path)((3,), torch.bool).shape == (3,)


def test_a_disk_without_room_for_an_array_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpillError, match=rf"has no room for an array of 4096\.0 TiB.*{tmp_path.name}.*Spill to"):
        Scratch(tmp_path)((1 << 50,), torch.float32)


class SlowHost(RamHost):
    """Puts nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_put = threading.Event()

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        assert self.may_put.wait(timeout=240)
        super().put(block, tensors)


class AtHand:
    """Tells which thread loads what is at hand."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.stayed: dict[Block, object] = {}

    def load(self, block: Block) -> Parts:
        return Parts.of(threading.current_thread().name)

    def is_at_hand(self, block: Block) -> bool:
        return True


def copying(host: Host) -> Residents:
    plan = Plan(operations=(), bounds=(0,), budget_bytes=UNLIMITED, peak_bytes=0)
    return Residents(plan, AtHand(host), lambda _: 10, None, FILES)


def block(interval: int) -> Block:
    return Block("value", "h", interval)


def test_what_is_at_hand_is_read_at_once_when_what_leaves_has_left() -> None:
    host = SlowHost()
    residents = copying(host)
    here = threading.current_thread().name
    assert residents.load(block(0), []).result() == here
    store = residents.store(block(1), {"": zeros(3)})
    # Its memory is another's only once it is stored.
    waiting = residents.load(block(2), [store])
    host.may_put.set()
    assert waiting.result() != here
    assert residents.load(block(3), [store]).result() == here
    residents.close()


class FailingHost(RamHost):
    """Has no room for one block."""

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        if block.interval == 0:
            raise OSError("no room")
        super().put(block, tensors)


def test_what_waits_for_the_last_store_learns_that_one_before_has_failed() -> None:
    residents = copying(FailingHost())
    stores = [residents.store(block(interval), {"": zeros(3)}) for interval in (1, 0, 2)]
    with pytest.raises(OSError, match="no room"):
        stores[-1].result()
    residents.close()


ROWS = {
    "none": [],
    "all": list(range(500)),
    "first and last": [0, 499],
    "runs": [3, 4, 5, 200, 201, 399],
    "every third": list(range(0, 500, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("name", ROWS)
def test_hosts_pick_the_rows_asked_for(
    dtype: torch.dtype, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A piece of a file has a few rows only.
    monkeypatch.setattr("sagann.storage.scattered.GAP_BYTES", 4096)
    monkeypatch.setattr("sagann.storage.scattered.READ_BYTES", 3 * 4096)
    rows = torch.tensor(ROWS[name], dtype=torch.int32)
    wide = torch.arange(500 * 300).reshape(500, 3, 100).to(dtype)
    tensors = {"wide": wide, "strided": wide[:, :, ::2], "scalar": wide[:, 0, 1], "empty": wide[:, :, :0]}
    hosts: list[Host] = [RamHost(), DiskHost(tmp_path)]
    for host in hosts:
        host.put(AT, tensors)
        found = host.pick(AT, rows).views()
        assert found.keys() == tensors.keys()
        for part, tensor in tensors.items():
            assert found[part].dtype == dtype
            assert torch.equal(found[part], tensor[rows.long()]), part


@pytest.mark.parametrize("parts", [[(0, 500)], [(0, 1), (1, 499), (499, 500)], [(400, 500), (7, 400), (0, 7)]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_others_write_and_read_blocks_where_they_lie(
    dtype: torch.dtype, parts: list[tuple[int, int]], tmp_path: Path
) -> None:
    streams = LateStreams()
    pool = PinnedPool(streams, most_bytes=1 << 20)
    hosts: list[Host] = [
        RamHost(),
        DiskHost(tmp_path),
        RamHost(pool),
    ]
    for host in hosts:
        # What is put again replaces the rows that were there, and leaves the neighbours alone.
        for wide in (torch.arange(500 * 12).reshape(500, 3, 4).to(dtype), torch.randn(500, 3, 4).to(dtype)):
            room = host.room(AT, Layout({"": wide}))[""]
            for first, last in parts:
                room[first:last] = wide[first:last]
                host.put(AT._replace(interval=first + 1), {"": wide[first]})
            assert torch.equal(host.get(AT).views()[""], wide)
            assert torch.equal(host.view(AT)[""], wide)
        host.put(AT, {"": wide + wide})
        assert torch.equal(host.view(AT)[""], wide + wide)
        host.close()
