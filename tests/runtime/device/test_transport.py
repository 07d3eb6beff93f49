"""Loads and stores run in lanes of their own, ordered by marks, and come with the cuts of edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from sagann.graph import Topology
from sagann.kernels.dialects import dialect_for
from sagann.kernels.edge import naive
from sagann.plan.steps import Block
from sagann.runtime.device import transport
from sagann.runtime.device.hosts import PinnedHost
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.transport import Cuts, DeviceTransport
from tests.graphs import random_topology
from tests.runtime.device.late_streams import LateStreams
from tests.threads import left_threads

BLOCK = Block("value", "h", 0)


class Given:
    """Blocks that lie on the host as they are."""

    def __init__(self, blocks: Mapping[Block, Any]) -> None:
        self.blocks = blocks

    def load(self, block: Block) -> Any:
        return self.blocks[block]

    def known_as(self, block: Block) -> Block:
        return block


def transporting(streams: LateStreams, blocks: Mapping[Block, Any], num_bytes: int = 4000) -> DeviceTransport:
    """A transport of blocks that count ``num_bytes`` each."""
    return DeviceTransport(
        Given(blocks),
        PinnedHost(streams, PinnedPool(streams)),
        lambda _: num_bytes,
        streams=streams,
        staging=PinnedPool(streams, 1 << 20),
        cuts=Cuts(naive),
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
    content = loading.load(BLOCK)()
    loading.close()
    assert content.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert content[name].dtype == tensor.dtype
        assert torch.equal(content[name], tensor)
    assert len({content[name].untyped_storage().data_ptr() for name in ("large", "with gaps", "small")}) == 1
    assert not streams.unforeseen


def test_a_block_that_is_larger_than_planned_takes_memory_of_its_own() -> None:
    tensor = torch.arange(4000, dtype=torch.float32)
    streams = LateStreams(tensor)
    loading = transporting(streams, {BLOCK: tensor}, num_bytes=100)
    assert torch.equal(loading.load(BLOCK)(), tensor)
    loading.close()
    assert streams.unforeseen == 1


@pytest.mark.parametrize("way", ["await_store", "drop"])
def test_computing_waits_for_a_store_before_its_block_is_changed_or_dropped(way: str) -> None:
    streams = LateStreams()
    storing = transporting(streams, {})
    value = torch.arange(50, dtype=torch.float32)
    storing.store(BLOCK, {"": value})
    assert streams.is_in_use(value)
    getattr(storing, way)(BLOCK)
    assert not streams.is_in_use(value)
    value.zero_()
    stored: Tensor = storing._host.get(BLOCK)[""]
    assert torch.equal(stored, torch.arange(50, dtype=torch.float32))
    storing.close()


def test_what_a_load_fails_with_comes_to_who_waits_for_it_and_the_thread_ends() -> None:
    loading = transporting(LateStreams(), {})
    load = loading.load(BLOCK)
    with pytest.raises(KeyError):
        load()
    loading.close()
    assert not left_threads("sagann-load")


def test_a_chunk_is_cut_once_and_again_when_the_graph_is_cut_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    dialect = dialect_for("cuda", "gpu")
    found: list[str] = []
    cut_of = dialect.cut_of  # type: ignore[attr-defined]

    def counted(topology: Topology, at: str) -> object:
        found.append(at)
        return cut_of(topology, at)

    monkeypatch.setattr(dialect, "cut_of", counted)
    cuts = Cuts(dialect)

    def hand_over(form: str) -> Topology:
        edges, moved = random_topology(9, 20), random_topology(9, 20)
        cuts.hand_over(Block("edges", form, 0, 0), edges, moved, lambda tensor: tensor)
        return moved

    for form, at in (("csc", "dst"), ("csr", "src")):
        for _ in range(2):
            moved = hand_over(form)
            moved.derived(("edge pass", "gpu", at), lambda: pytest.fail("the edges have no cut"))
    assert found == ["dst", "src"]
    cuts.forget()
    hand_over("csc")
    assert found == ["dst", "src", "dst"]
