"""Hosts beside a device: blocks in pinned memory, or in files that are read and written by way of it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol
from weakref import finalize

from torch import Tensor

from sagann.kernels.packed import Layout
from sagann.plan.steps import Block
from sagann.runtime.blocks.host import Host, picked
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.streams import Mark, Streams


class DeviceHost(Host, Protocol):
    """A host that takes blocks of a device without anybody waiting."""

    def receive(self, block: Block, tensors: Mapping[str, Tensor]) -> Mark:
        """Queue the copies of a block's tensors in this thread's lane, which is "store"; gives the mark after them."""
        ...


class PinnedHost:
    """Blocks in pinned memory. What is read of them is that memory itself; rows are picked out of it by the host.

    Args:
        streams: of the device.
        pool: where the memory comes from.
    """

    is_memory = False
    gives_copies = False

    def __init__(self, streams: Streams, pool: PinnedPool) -> None:
        self._streams = streams
        self._pool = pool
        self._blocks: dict[Block, tuple[Layout, Tensor]] = {}
        self._arrivals: dict[Block, Mark] = {}
        "What comes after the last copies of blocks that lay on the device."
        # Blocks of an epoch that never came to its backward go back as well.
        finalize(self, _return, streams, pool, self._blocks).atexit = False

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors, in the lane that computes where they lie on the device."""
        if self._copy(block, tensors):
            self._arrivals[block] = self._streams.mark("compute")

    def receive(self, block: Block, tensors: Mapping[str, Tensor]) -> Mark:
        """Queue the copies of a block's tensors in this thread's lane; gives the mark after them."""
        self._copy(block, tensors)
        self._arrivals[block] = self._streams.mark("store")
        return self._arrivals[block]

    def _copy(self, block: Block, tensors: Mapping[str, Tensor]) -> bool:
        """Whether any of it was queued: what lies on the host is copied at once."""
        layout, known = Layout(tensors), self._blocks.get(block)
        if known is not None and known[0].num_bytes == layout.num_bytes:
            # Whoever stores a block again has read what was there: the lane waits for that.
            memory = known[1]
        else:
            if known is not None:
                self._pool.give(known[1], self._streams.mark("store"))
            memory = self._pool.take(layout.num_bytes)
        for name, view in layout.views(memory).items():
            source = tensors[name].detach()
            if self._streams.holds(source):
                self._streams.copy(view, source)
            else:
                view.copy_(source)
        self._blocks[block] = layout, memory
        return any(map(self._streams.holds, tensors.values()))

    def get(self, block: Block) -> dict[str, Tensor]:
        """Where a block's tensors lie, or will lie when the lane that stores them has come so far."""
        layout, memory = self._blocks[block]
        return layout.views(memory)

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        """Copies of some rows of each tensor of what was put last; waits until it has arrived."""
        if (arrived := self._arrivals.get(block)) is not None:
            self._streams.finish(arrived)
        layout, memory = self._blocks[block]
        return picked(layout.views(memory), rows)

    def close(self) -> None:
        """Forget all blocks."""
        _return(self._streams, self._pool, self._blocks)


def _return(streams: Streams, pool: PinnedPool, blocks: dict[Block, tuple[Layout, Tensor]]) -> None:
    for lane in ("load", "store", "compute"):
        streams.finish(streams.mark(lane))
    while blocks:
        _, (_, memory) = blocks.popitem()
        pool.give(memory)


class StagedHost:
    """Blocks where another host keeps them, which knows of no device: in files.

    What comes from the device is copied to a piece of pinned memory, and put by a thread.

    Args:
        host: keeps the blocks.
        streams: of the device.
        staging: where the memory comes from.
    """

    is_memory = False
    gives_copies = True

    def __init__(self, host: Host, streams: Streams, staging: PinnedPool) -> None:
        self._host = host
        self._streams = streams
        self._staging = staging
        self._writes: dict[Block, Future[None]] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-store")
        self._is_closed = False

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors at once; the host waits for those of the device."""
        self._settle(block)
        self._host.put(block, {name: tensor.detach().cpu() for name, tensor in tensors.items()})

    def receive(self, block: Block, tensors: Mapping[str, Tensor]) -> Mark:
        """Queue the copies of a block's tensors in this thread's lane; a thread puts them when they have arrived."""
        self._settle(block)
        layout = Layout(tensors)
        memory = self._staging.take(layout.num_bytes)
        try:
            views = layout.views(memory)
            for name, view in views.items():
                self._streams.copy(view, tensors[name].detach())
            arrived = self._streams.mark("store")
            self._writes[block] = self._writer.submit(self._write, block, views, memory, arrived)
        except BaseException:
            # Copies that were queued before may be under way.
            self._staging.give(memory, self._streams.mark("store"))
            raise
        return arrived

    def get(self, block: Block) -> dict[str, Tensor]:
        """Read what was put last."""
        self._settle(block)
        return self._host.get(block)

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        """Read some rows of each tensor of what was put last."""
        self._settle(block)
        return self._host.pick(block, rows)

    def close(self) -> None:
        """Forget all blocks, also those that are still to be put."""
        self._is_closed = True
        # Nothing is cancelled: each write has memory to give back.
        self._writer.shutdown(wait=True)
        self._writes.clear()
        self._host.close()

    def _write(self, block: Block, views: Mapping[str, Tensor], memory: Tensor, arrived: Mark) -> None:
        try:
            self._streams.finish(arrived)
            if not self._is_closed:
                self._host.put(block, views)
        finally:
            self._staging.give(memory)

    def _settle(self, block: Block) -> None:
        """Have the last write of a block done."""
        if (write := self._writes.pop(block, None)) is not None:
            write.result()
