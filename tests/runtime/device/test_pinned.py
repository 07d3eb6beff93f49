"""Pinned memory is reused once the copies that touch it are done."""

from __future__ import annotations

import threading

import pytest
import torch

from sagann.runtime.device.streams import PinnedPool
from tests.runtime.device.late_streams import LateMark, LateStreams


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
