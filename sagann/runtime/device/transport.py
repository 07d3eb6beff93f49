"""Device transport: copies between host and device, in lanes of their own.

The host queues copies and does not wait; marks order the lanes. All memory of blocks is allocated in the order of the lane
that computes, so memory is reused in the plan's order:

- A load gets its memory, and a mark of computing, when the plan comes to the load. Its copy waits for the mark, because
  earlier steps may still use the memory. The first step that reads the block waits for the copy.
- A store's copy waits for the step that wrote the block last. A step that changes or drops the block waits for the copy.

So a copy may last from where the plan begins it to where the plan needs it, as a thread's copy does on the CPU, and no more
memory is in use than was planned.

What lies in pinned memory is copied from there. Other loads are prepared by a thread: it reads files, and copies pageable memory
to a ring of pinned pieces. A block that goes to a file comes to a pinned piece, from where a thread writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import finalize

from torch import Tensor

from sagann.kernels.packed import Layout, side_by_side
from sagann.plan.steps import Block
from sagann.runtime.blocks.host import Host, copy_alone_into
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.blocks.transport import Awaited, BytesOf, Copy, Threads, Transport, nothing
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.recorder import EventRecorder
from sagann.runtime.device.streams import Mark, Streams
from sagann.runtime.recorder import Recorder, recorded

SPARE_BYTES = 2048
"Bytes beyond those that are planned for a block, so that each of its tensors can be aligned."
PIECE_BYTES = 16 << 20
"Bytes of pageable memory that are copied at a time: one piece goes to the device while the next is prepared."
SMALL_BYTES = 64 << 10
"Bytes of a piece for tensors that are no larger."


class DeviceTransport(Transport):
    """Copies between a host and a device; ``staging`` is pinned memory for copies from and to pageable memory and files."""

    timeline: EventRecorder | None
    _threads: Threads

    def __init__(
        self,
        sources: Sources,
        host: Host,
        bytes_of: BytesOf,
        timeline: Recorder | None,
        *,
        streams: Streams,
        staging: PinnedPool,
    ) -> None:
        events = None if timeline is None else EventRecorder(streams, timeline)
        super().__init__(sources, host, bytes_of, events, copies_beside=True)
        self._streams, self._staging = streams, staging
        self._reader = _Reader(sources=sources, streams=streams, staging=staging, timeline=events)
        # Memory of copies under way is kept until they are done, even if the transport itself is dropped.
        self._under_way: dict[Block, Tensor] = {}
        # By block, what waits on the host until its last store has ended.
        self._stored: dict[Block, Callable[[], None]] = {}
        self._end = finalize(self, _end, streams, self._threads, self._under_way)
        self._end.atexit = False

    def load(self, block: Block, after: Sequence[Copy]) -> Copy:
        # The lane that computes has waited for the stores of what was dropped.
        num_bytes = self._bytes_of(block)
        memory = self._streams.empty(num_bytes + SPARE_BYTES)
        self._under_way[block] = memory
        load = partial(self._reader.load, block, num_bytes, memory, self._streams.mark("compute"))
        if self._sources.lies_in_memory(block):
            # To queue a copy takes less than to hand it to the thread, with which this one would share Python's lock.
            landing = load(nothing)
            return Awaited(partial(self._landed, block, lambda: landing))
        job = self._threads.loader.submit(load, self._stored.get(block.whole, nothing))
        return Awaited(partial(self._landed, block, job.result))

    def _landed(self, block: Block, landing_of: Callable[[], _Landing]) -> Any:
        """The content of a block whose load was begun."""
        landing = landing_of()
        self._streams.wait("compute", landing.arrived)
        if landing.own is not None:
            self._streams.hand_over(landing.own)
        self._under_way.pop(block, None)
        return landing.content

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> Copy:
        streams, layout = self._streams, Layout(tensors)
        staged = None if self._host.lies_in_memory else self._staging.take(layout.num_bytes)
        views = self._host.room(block, layout) if staged is None else layout.views(staged)
        streams.wait("store", streams.mark("compute"))
        with streams.on("store"):
            try:
                with recorded(self.timeline, "store", block.label, self._bytes_of(block)):
                    for name, view in views.items():
                        streams.copy(view, tensors[name].detach())
            except BaseException:
                if staged is not None:
                    # Copies that were queued before the error may be under way.
                    self._staging.give(staged, streams.mark("store"))
                raise
            arrived = streams.mark("store")
        self._stored[block] = partial(streams.finish, arrived)
        if staged is not None:
            put, release = partial(self._host.put, block, views), partial(self._staging.give, staged)
            self._stored[block] = self._threads.store(put, arrive=self._stored[block], release=release).result
        return Awaited(partial(streams.wait, "compute", arrived))

    def await_store(self, block: Block) -> None:
        self._stored.get(block, nothing)()

    def close(self) -> None:
        self._end()
        super().close()
        if self.timeline is not None:
            self.timeline.settle()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Landing:
    """A block on its way to the device."""

    content: Any
    "Content of the block on the device."
    own: Tensor | None
    "Memory beyond the block's, where its tensors do not fit."
    arrived: Mark
    "Mark after the copies."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    """Reads blocks and queues their copies, in any thread."""

    sources: Sources
    streams: Streams
    staging: PinnedPool
    timeline: EventRecorder | None

    def load(
        self, block: Block, num_bytes: int, memory: Tensor, free: Mark, stored: Callable[[], None]
    ) -> _Landing:
        """Read a block once it is stored, and queue its copy to the device's ``memory``, which is free after the mark ``free``."""
        name = block.label
        with recorded(None if self.timeline is None else self.timeline.of_host, "load", f"{name}, read"):
            stored()
            parts = self.sources.load(block)
        with self.streams.on("load"):
            self.streams.wait("load", free)
            with recorded(self.timeline, "load", name, num_bytes):
                needed_bytes = sum(region.layout.num_bytes for region in parts.regions)
                # This lane allocates other memory, so only this lane's earlier copies can have used it.
                own = self.streams.empty(needed_bytes) if needed_bytes > memory.nbytes else None
                copies = list(side_by_side(parts.regions, memory if own is None else own))
                for region, copy in zip(parts.regions, copies, strict=True):
                    self._copy(copy.bytes, region.bytes)
            return _Landing(content=parts.content(copies), own=own, arrived=self.streams.mark("load"))

    def _copy(self, into: Tensor, source: Tensor) -> None:
        """Queue the copy of a region."""
        into = into[: len(source)]
        if not len(source):
            return
        if self.streams.is_pinned(source):
            self.streams.copy(into, source)
            return
        for here, part in zip(into.split(PIECE_BYTES), source.split(PIECE_BYTES), strict=True):
            # Pieces have two sizes only, so that they are reused: pinning one takes longer than copying it.
            piece = self.staging.take(SMALL_BYTES if len(part) <= SMALL_BYTES else PIECE_BYTES)
            self.streams.copy(here, copy_alone_into(piece[: len(part)], part))
            self.staging.give(piece, self.streams.mark("load"))


def _end(streams: Streams, threads: Threads, under_way: dict[Block, Tensor]) -> None:
    threads.end()
    streams.finish(streams.mark("load"))
    streams.finish(streams.mark("store"))
    under_way.clear()
