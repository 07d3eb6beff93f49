"""Loads and stores run in lanes of their own, ordered by marks; the memory that they pass through comes back, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sagann.plan.steps import DEVICE, UNLIMITED, Beside, Block, Plan
from sagann.runtime.blocks.host import DiskHost, Host, Parts, RamHost
from sagann.runtime.device.residents import DeviceResidents, Lanes
from sagann.runtime.device.streams import PinnedPool
from tests.runtime.device.late_streams import LateStreams
from tests.threads import left_threads

PIECE_BYTES = 4096


class Given:
    """Blocks that lie on a host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.stayed: dict[Block, object] = {}

    def load(self, block: Block) -> Parts:
        return Parts([self.host.get(block)])

    def lies_in_memory(self, block: Block) -> bool:
        return False


def copying(streams: LateStreams, host: Host, *, staging_bytes: int = 1 << 20) -> DeviceResidents:
    """Residents whose blocks count 4000 bytes each."""
    plan = Plan(operations=(), bounds=(0,), budget_bytes=UNLIMITED, peak_bytes=0)
    staging, beside = PinnedPool(streams, staging_bytes), Beside(copies_beside=True, has_engines=True)
    return DeviceResidents(plan, Given(host), lambda _: 4000, None, beside, devices=[Lanes(streams, staging)])


def block(number: int) -> Block:
    return Block("value", "x", number)


def piece(value: float) -> Tensor:
    return torch.full((PIECE_BYTES // 4,), value, dtype=torch.float32)


def can_take(pool: PinnedPool, num_bytes: int) -> bool:
    """Whether a pool gives a piece; where it does not, who asks waits for ever."""
    thread = threading.Thread(target=pool.take, args=(num_bytes,), daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


@pytest.mark.parametrize("num_rows", [30, 300])
def test_tensors_of_all_kinds_arrive_side_by_side(
    num_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagann.runtime.device.residents.PIECE_BYTES", 256)
    monkeypatch.setattr("sagann.runtime.device.residents.SMALL_BYTES", 64)
    tensors = {
        "large": torch.arange(10 * num_rows, dtype=torch.float32).reshape(num_rows, 10),
        "with gaps": torch.arange(24, dtype=torch.int64).reshape(4, 6)[:, ::2],
        "small": torch.tensor([True, False, True]),
        "empty": torch.empty(0, 5),
        "without a dimension": torch.tensor(3.0),
        "expanded": torch.tensor([3.0]).expand(7, 2, 1),
    }
    streams, host = LateStreams(), DiskHost(tmp_path)
    host.put(block(0), tensors)
    loading = copying(streams, host)
    content = loading.load(block(0), []).result()
    loading.close()
    assert content.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert content[name].dtype == tensor.dtype
        assert torch.equal(content[name], tensor)
    assert len({content[name].untyped_storage().data_ptr() for name in ("large", "with gaps", "small")}) == 1
    # What is larger than planned gets memory of its own.
    assert streams.unforeseen == (num_rows == 300)


def test_what_a_load_fails_with_comes_to_who_waits_for_it_and_the_thread_ends() -> None:
    loading = copying(LateStreams(), RamHost())
    load = loading.load(block(0), [])
    with pytest.raises(KeyError):
        load.result()
    loading.close()
    assert not left_threads("sagann-load")


def test_what_was_stored_last_comes_back(tmp_path: Path) -> None:
    streams, host = LateStreams(), DiskHost(tmp_path)
    storing = copying(streams, host, staging_bytes=2 * PIECE_BYTES)
    for number in (0, 1, 2, 3, 1):
        storing.store(block(number), {"": piece(number)})
    storing.store(block(2), {"one": piece(7), "more": piece(8)[:5]})
    # A load waits for the block to be written.
    assert storing.load(block(2), []).result()["more"].tolist() == [8] * 5
    for number in range(4):
        storing.await_store(block(number))
    found = [next(iter(host.get(block(number)).views().values())) for number in range(4)]
    assert [float(each[-1]) for each in found] == [0, 1, 7, 3]
    storing.close()


@pytest.mark.parametrize("is_pinned", [True, False])
def test_rows_are_read_once_the_block_has_come(is_pinned: bool, tmp_path: Path) -> None:
    streams = LateStreams()
    host = RamHost(PinnedPool(streams)) if is_pinned else DiskHost(tmp_path)
    storing = copying(streams, host)
    storing.store(block(0), {"": piece(3)})
    # As before rows are sent to another worker.
    storing.await_store(block(0))
    assert host.view(block(0))[""][2:6].tolist() == [3] * 4
    storing.close()


def test_what_cannot_be_put_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(block: Block, tensors: Mapping[str, Tensor]) -> None:
        raise OSError("the disk is full")

    streams, host = LateStreams(), DiskHost(tmp_path)
    storing = copying(streams, host, staging_bytes=2 * PIECE_BYTES)
    monkeypatch.setattr(host, "put", full)
    for number in range(2):
        storing.store(block(number), {"": piece(number)})
    with pytest.raises(OSError, match="the disk is full"):
        storing.load(block(1), []).result()
    with pytest.raises(OSError, match="the disk is full"):
        storing.await_store(block(1))
    storing.close()
    assert can_take(storing._devices[DEVICE].staging, 2 * PIECE_BYTES)


def test_a_copy_that_fails_gives_its_memory_back_once_those_before_it_are_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    streams = LateStreams()
    storing = copying(streams, DiskHost(tmp_path), staging_bytes=2 * PIECE_BYTES)
    copy = streams.copy

    def failing(into: Tensor, source: Tensor) -> None:
        if source.stride() != (1,):
            raise torch.OutOfMemoryError("none is left for what is not contiguous")
        copy(into, source)

    monkeypatch.setattr(streams, "copy", failing)
    with pytest.raises(torch.OutOfMemoryError, match="none is left"):
        storing.store(block(0), {"a": piece(1), "b": torch.ones(PIECE_BYTES // 2)[::2]})
    assert streams.copied["store"] == PIECE_BYTES
    assert can_take(storing._devices[DEVICE].staging, 2 * PIECE_BYTES)
    # What was queued has run by then: nobody else's content is overwritten.
    assert not streams._queues["store"]
    storing.close()
