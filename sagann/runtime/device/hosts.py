"""Hosts beside a device: blocks in pinned memory, or in files that are copied by way of pinned memory."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import finalize

from torch import Tensor

from sagann.kernels.packed import Layout
from sagann.plan.steps import Block
from sagann.runtime.blocks.host import Host, RamHost
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.streams import Mark, Streams


class PinnedHost(RamHost):
    """Blocks in pinned memory. A block is read as it lies there; the host picks rows out of it."""

    gives_copies = False

    def __init__(self, streams: Streams, pool: PinnedPool) -> None:
        super().__init__()
        self._streams = streams
        self._pool = pool
        self._arrivals: dict[Block, Mark] = {}
        "Mark after the last copy of each block that came from the device."
        # An epoch that never runs its backward returns its memory as well.
        finalize(self, _return, streams, pool, self._blocks).atexit = False

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors. The lane that computes copies tensors of the device."""
        self._copy(block, tensors)
        if any(map(self._streams.holds, tensors.values())):
            self._arrivals[block] = self._streams.mark("compute")

    def receive(self, block: Block, tensors: Mapping[str, Tensor]) -> Mark:
        """Queue the copies of a block's tensors in this thread's lane, which is "store"; gives the mark after them."""
        self._copy(block, tensors)
        self._arrivals[block] = self._streams.mark("store")
        return self._arrivals[block]

    def room(self, block: Block, layout: Layout) -> dict[str, Tensor]:
        known = self._blocks.get(block)
        if known is not None and known[0].num_bytes == layout.num_bytes:
            # A block is stored again only after it was read, and the lane waits for that.
            memory = known[1]
        else:
            if known is not None:
                self._pool.give(known[1], self._streams.mark("store"))
            memory = self._pool.take(layout.num_bytes)
        self._blocks[block] = layout, memory
        return layout.views(memory)

    def _copy(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        for name, view in self.room(block, Layout(tensors)).items():
            source = tensors[name].detach()
            if self._streams.holds(source):
                self._streams.copy(view, source)
            else:
                view.copy_(source)

    def get(self, block: Block) -> dict[str, Tensor]:
        """Where a block's tensors lie, or will lie once the lane "store" has copied them."""
        return super().view(block)

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        """Copies of some rows of each tensor; waits until the block has arrived."""
        if (arrived := self._arrivals.get(block)) is not None:
            self._streams.finish(arrived)
        return super().pick(block, rows)

    def view(self, block: Block) -> dict[str, Tensor]:
        """The tensors of a block where they lie; waits until the block has arrived."""
        if (arrived := self._arrivals.get(block)) is not None:
            self._streams.finish(arrived)
        return super().view(block)

    def close(self) -> None:
        _return(self._streams, self._pool, self._blocks)


def _return(streams: Streams, pool: PinnedPool, blocks: dict[Block, tuple[Layout, Tensor]]) -> None:
    for lane in ("load", "store", "compute"):
        streams.finish(streams.mark(lane))
    while blocks:
        _, (_, memory) = blocks.popitem()
        pool.give(memory)


class StagedHost:
    """Blocks in another host, which knows of no device: in files.

    The device copies a block to a piece of pinned memory, and a thread puts it into the other host.
    """

    gives_copies = True

    def __init__(self, host: Host, streams: Streams, staging: PinnedPool) -> None:
        self._host = host
        self._streams = streams
        self._staging = staging
        self._writes: dict[Block, Future[None]] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-store")
        self._is_closed = False

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors at once. The host waits for tensors of the device."""
        self._settle(block)
        self._host.put(block, {name: tensor.detach().cpu() for name, tensor in tensors.items()})

    def receive(self, block: Block, tensors: Mapping[str, Tensor]) -> Mark:
        """Queue the copies of a block's tensors in this thread's lane, which is "store"; a thread puts them on arrival."""
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
            # Copies that were queued before the error may be under way.
            self._staging.give(memory, self._streams.mark("store"))
            raise
        return arrived

    def get(self, block: Block) -> dict[str, Tensor]:
        self._settle(block)
        return self._host.get(block)

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        self._settle(block)
        return self._host.pick(block, rows)

    def room(self, block: Block, layout: Layout) -> dict[str, Tensor]:
        self._settle(block)
        return self._host.room(block, layout)

    def view(self, block: Block) -> dict[str, Tensor]:
        self._settle(block)
        return self._host.view(block)

    def close(self) -> None:
        """Forget all blocks, also those that the thread has not put yet."""
        self._is_closed = True
        # No write is cancelled, because each one returns its memory.
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
        """Wait for the last write of a block."""
        if (write := self._writes.pop(block, None)) is not None:
            write.result()


DeviceHost = PinnedHost | StagedHost
"A host that takes blocks of a device (``receive``) while the host's thread goes on."
