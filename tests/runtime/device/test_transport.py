"""Loads and stores run in lanes of their own, ordered by marks, and come with the cuts of edges."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from sagann.kernels.edge import naive
from sagann.plan.steps import Block
from sagann.runtime.device import transport
from sagann.runtime.device.chunk_parcels import ChunkParcels
from sagann.runtime.device.hosts import PinnedHost
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.transport import DeviceTransport
from tests.runtime.device.late_streams import LateStreams
from tests.threads import left_threads

BLOCK = Block("value", "h", 0)


class Given:
    """Blocks that lie on the host as they are."""

    def __init__(self, blocks: Mapping[Block, Any], *, pinned: bool = False) -> None:
        self.blocks = blocks
        self.pinned = pinned
        self.threads: set[str] = set()
        "Names of the threads that loaded."

    def load(self, block: Block) -> Any:
        self.threads.add(threading.current_thread().name)
        return self.blocks[block]

    def lies_pinned(self, block: Block) -> bool:
        return self.pinned

    def known_as(self, block: Block) -> Block:
        return block


def transporting(
    streams: LateStreams, blocks: Mapping[Block, Any] | Given, num_bytes: int = 4000
) -> DeviceTransport:
    """A transport of blocks that count ``num_bytes`` each."""
    pool = PinnedPool(streams)
    return DeviceTransport(
        blocks if isinstance(blocks, Given) else Given(blocks),
        PinnedHost(streams, pool),
        lambda _: num_bytes,
        streams=streams,
        staging=PinnedPool(streams, 1 << 20),
        chunks=ChunkParcels(naive, streams, pool),
        timeline=None,
    )


def test_tensors_of_all_kinds_arrive_side_by_side_in_the_blocks_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PIECE_BYTES", 256)
    monkeypatch.setattr(transport, "SMALL_BYTES", 64)
    tensors = {
        "large": torch.arange(300, dtype=torch.float32).reshape(30, 10),
        "with gaps": torch.arange(24, dtype=torch.int64).reshape(4, 6)[:, ::2],
        "small": torch.tensor([True, False, True]),
        "empty": torch.empty(0, 5),
        "without a dimension": torch.tensor(3.0),
        "without a stride": torch.tensor([3.0]).expand(7)[:1],
        "expanded": torch.tensor([3.0]).expand(7, 2, 1),
    }
    streams = LateStreams(*tensors.values())
    loading = transporting(streams, {BLOCK: tensors})
    content = loading.load(BLOCK, []).result()
    loading.close()
    assert content.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert content[name].dtype == tensor.dtype
        assert torch.equal(content[name], tensor)
    assert len({content[name].untyped_storage().data_ptr() for name in ("large", "with gaps", "small")}) == 1
    assert not streams.unforeseen


def test_what_a_load_fails_with_comes_to_who_waits_for_it_and_the_thread_ends() -> None:
    loading = transporting(LateStreams(), {})
    load = loading.load(BLOCK, [])
    with pytest.raises(KeyError):
        load.result()
    loading.close()
    assert not left_threads("sagann-load")
