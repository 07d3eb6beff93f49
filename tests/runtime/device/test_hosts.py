"""Blocks by way of pinned memory to where another host keeps them; the memory comes back, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from threading import Thread

import pytest
import torch
from torch import Tensor

from sagann.plan.steps import Block
from sagann.runtime.blocks.host import RamHost
from sagann.runtime.device.hosts import PinnedHost, StagedHost
from sagann.runtime.device.pinned import PinnedPool
from tests.runtime.device.late_streams import LateMark, LateStreams

PIECE_BYTES = 4096


def block(number: int) -> Block:
    return Block("value", "x", number)


def piece(value: float) -> Tensor:
    return torch.full((PIECE_BYTES // 4,), value, dtype=torch.float32)


def can_take(pool: PinnedPool, num_bytes: int) -> bool:
    """Whether a pool gives a piece; where it does not, who asks waits for ever."""
    thread = Thread(target=pool.take, args=(num_bytes,), daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def test_what_was_received_last_comes_back() -> None:
    streams = LateStreams()
    host = StagedHost(RamHost(), streams, PinnedPool(streams, most_bytes=2 * PIECE_BYTES))
    streams.wait("store", streams.mark("compute"))
    with streams.on("store"):
        for number in (0, 1, 2, 3, 1):
            host.receive(block(number), {"": piece(number)})
        host.receive(block(2), {"": piece(7), "more": piece(8)[:5]})
    assert [float(host.get(block(number))[""][-1]) for number in range(4)] == [0, 1, 7, 3]
    assert host.pick(block(2), torch.tensor([0, 4]))["more"].tolist() == [8, 8]
    host.close()


@pytest.mark.parametrize("is_pinned", [True, False])
def test_rows_are_read_once_the_block_has_come(is_pinned: bool) -> None:
    streams = LateStreams()
    pool = PinnedPool(streams)
    host = PinnedHost(streams, pool) if is_pinned else StagedHost(RamHost(), streams, pool)
    streams.wait("store", streams.mark("compute"))
    with streams.on("store"):
        host.receive(block(0), {"": piece(3)})
    # As by a message to another worker.
    assert host.view(block(0))[""][2:6].tolist() == [3] * 4
    host.close()


def test_what_cannot_be_put_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(block: Block, tensors: Mapping[str, Tensor]) -> None:
        raise OSError("the disk is full")

    streams, kept = LateStreams(), RamHost()
    staging = PinnedPool(streams, most_bytes=2 * PIECE_BYTES)
    host = StagedHost(kept, streams, staging)
    monkeypatch.setattr(kept, "put", full)
    streams.wait("store", streams.mark("compute"))
    with streams.on("store"):
        for number in range(2):
            host.receive(block(number), {"": piece(number)})
    with pytest.raises(OSError, match="the disk is full"):
        host.get(block(1))
    host.close()
    assert can_take(staging, 2 * PIECE_BYTES)


def test_a_copy_that_fails_gives_its_memory_back_once_those_before_it_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = LateStreams()
    staging = PinnedPool(streams, most_bytes=2 * PIECE_BYTES)
    host = StagedHost(RamHost(), streams, staging)
    copy = streams.copy

    def failing(into: Tensor, source: Tensor) -> None:
        if source.stride() != (1,):
            raise torch.OutOfMemoryError("none is left for what is not contiguous")
        copy(into, source)

    monkeypatch.setattr(streams, "copy", failing)
    streams.wait("store", streams.mark("compute"))
    with streams.on("store"), pytest.raises(torch.OutOfMemoryError, match="none is left"):
        host.receive(block(0), {"a": piece(1), "b": torch.ones(PIECE_BYTES // 2)[::2]})
    assert streams.copied["store"] == PIECE_BYTES
    assert can_take(staging, 2 * PIECE_BYTES)
    # What was queued has run by then: nobody else's content is overwritten.
    assert not streams._queues["store"]
    host.close()


def test_a_piece_is_free_once_its_copy_is_done_and_fits_somewhat_less() -> None:
    streams = LateStreams()
    pool = PinnedPool(streams, most_times=1.5)
    piece, into = pool.take(12 * 4096), streams.empty(8)
    streams.wait("load", streams.mark("compute"))
    with streams.on("load"):
        streams.copy(into, piece[:8])
        mark = streams.mark("load")
    pool.give(piece, mark)
    second = pool.take(9 * 4096)
    assert second.data_ptr() != piece.data_ptr()
    streams.finish(mark)
    assert pool.take(9 * 4096).data_ptr() == piece.data_ptr()
    pool.give(piece)
    # A third of it would be wasted.
    assert len(pool.take(7 * 4096)) == 7 * 4096


def test_within_a_limit_the_oldest_piece_is_waited_for() -> None:
    streams = LateStreams()
    pool = PinnedPool(streams, most_bytes=3 * 4096)
    source, device = torch.ones(4096, dtype=torch.uint8), [streams.empty(4096) for _ in range(4)]
    streams.wait("load", streams.mark("compute"))
    for number, into in enumerate(device):
        piece = pool.take(4096)
        piece.copy_(source * number)
        with streams.on("load"):
            streams.copy(into, piece)
        pool.give(piece, streams.mark("load"))
    # Its copy had to be made before the fourth piece could be had.
    assert [int(into[0]) for into in device] == [0, 0xFF, 0xFF, 0xFF]
    streams.finish(streams.mark("load"))
    assert [int(into[0]) for into in device] == [0, 1, 2, 3]
    assert streams.pinned_bytes == 3 * 4096


def test_one_piece_alone_may_be_larger_than_the_limit_and_others_wait_until_it_is_back() -> None:
    streams = LateStreams()
    pool = PinnedPool(streams, most_bytes=4096)
    large = pool.take(10 * 4096)
    got: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: got.append(pool.take(4096)))
    thread.start()
    thread.join(0.05)
    assert not got
    pool.give(large)
    thread.join(10)
    assert len(got[0]) == 4096


def test_a_piece_whose_copy_fails_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(mark: LateMark) -> None:
        raise RuntimeError("the device failed")

    streams = LateStreams()
    pool = PinnedPool(streams, most_bytes=4096)
    piece, into = pool.take(4096), streams.empty(4096)
    streams.wait("load", streams.mark("compute"))
    with streams.on("load"):
        streams.copy(into, piece)
    pool.give(piece, streams.mark("load"))
    with monkeypatch.context() as patches:
        patches.setattr(streams, "finish", failing)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the device failed"):
                pool.take(4096)
    assert pool.take(4096).data_ptr() == piece.data_ptr()
