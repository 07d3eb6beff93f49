"""Lanes and pinned memory of a real device."""

from __future__ import annotations

import gc

import pytest
import torch

from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.streams import Streams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_pinned_memory_is_pinned_and_given_back() -> None:
    streams = Streams(torch.device("cuda", torch.cuda.current_device()))
    pool = PinnedPool(streams)
    piece = pool.take(3 << 20)
    assert streams.is_pinned(piece)
    assert streams.is_pinned(piece[5:].view(-1)[:7])
    assert not streams.is_pinned(torch.ones(9))
    on_device = streams.empty(3 << 20)
    piece.fill_(7)
    with streams.on("load"):
        streams.wait("load", streams.mark("compute"))
        streams.copy(on_device, piece[: 3 << 20])
        arrived = streams.mark("load")
    streams.wait("compute", arrived)
    assert bool((on_device == 7).all())
    del piece, pool
    gc.collect()
    # The same addresses can be pinned again.
    again = [streams.pinned(3 << 20) for _ in range(4)]
    assert all(map(streams.is_pinned, again))
