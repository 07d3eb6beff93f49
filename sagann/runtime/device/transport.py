"""Device transport: copies between host and device, in lanes of their own.

The host queues copies and does not wait; marks order the lanes. All memory of blocks is allocated in the order of the lane
that computes, so memory is reused in the plan's order:

- A load gets its memory, and a mark of computing, when the plan comes to the load. Its copy waits for the mark, because
  earlier steps may still use the memory. The first step that reads the block waits for the copy.
- A store's copy waits for the step that wrote the block last. A step that changes or drops the block waits for the copy.

So a copy may last from where the plan begins it to where the plan needs it, as a thread's copy does on the CPU, and no more
memory is in use than was planned.

What lies in pinned memory is copied from there. Other loads are prepared by a thread: it reads files, and copies pageable memory
to a ring of pinned pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import finalize

from torch import Tensor

from sagann.plan.steps import Block
from sagann.runtime.blocks.host import copy_alone_into
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.blocks.transport import Awaited, BytesOf, Copy, Transport
from sagann.runtime.device.chunk_parcels import ChunkParcels
from sagann.runtime.device.hosts import DeviceHost
from sagann.runtime.device.parcels import ALIGNMENT, Parcel, mapped, tensors_of
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.recorder import EventRecorder
from sagann.runtime.device.streams import Mark, Streams
from sagann.runtime.recorder import recorded

MOST_TENSORS = 32
"Most tensors of a block. Its memory has room to align so many."
PIECE_BYTES = 16 << 20
"Bytes of pageable memory that are copied at a time: one piece goes to the device while the next is prepared."
SMALL_BYTES = 64 << 10
"Bytes of a piece for tensors that are no larger."


class DeviceTransport(Transport):
    """Copies between a host and a device; ``staging`` is pinned memory for copies from pageable memory."""

    _host: DeviceHost
    _timeline: EventRecorder | None

    def __init__(
        self,
        sources: Sources,
        host: DeviceHost,
        bytes_of: BytesOf,
        *,
        streams: Streams,
        staging: PinnedPool,
        chunks: ChunkParcels,
        timeline: EventRecorder | None,
    ) -> None:
        super().__init__(sources, host, bytes_of, timeline)
        self._reader = _Reader(sources=sources, streams=streams, staging=staging, chunks=chunks, timeline=timeline)
        self._streams = streams
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sagann-load")
        # Memory of copies under way is kept until they are done, even if the transport itself is dropped.
        self._under_way: dict[Block, Tensor] = {}
        self._end = finalize(self, _end, streams, self._loader, self._under_way)
        self._end.atexit = False

    def load(self, block: Block, after: Sequence[Copy]) -> Copy:
        # The lane that computes has waited for the stores of what was dropped.
        memory = self._streams.empty(self._bytes_of(block) + MOST_TENSORS * ALIGNMENT)
        self._under_way[block] = memory
        free = self._streams.mark("compute")
        if self._sources.lies_pinned(block):
            # To queue a copy takes less than to hand it to the thread, with which this one would share Python's lock.
            landing = self._reader.load(block, memory, free, lies_pinned=True)
            return Awaited(partial(self._landed, block, lambda: landing))
        job = self._loader.submit(self._reader.load, block, memory, free, lies_pinned=False)
        return Awaited(partial(self._landed, block, job.result))

    def store(self, block: Block, tensors: Mapping[str, Tensor]) -> Copy:
        self._streams.wait("store", self._streams.mark("compute"))
        with self._streams.on("store"):
            arrived = self._recorded("store", self._host.receive, block, tensors)
        return Awaited(partial(self._streams.wait, "compute", arrived))

    def close(self) -> None:
        self._end()
        super().close()
        if self._timeline is not None:
            self._timeline.settle()

    def _landed(self, block: Block, landing_of: Callable[[], _Landing]) -> Any:
        """The content of a block whose load was begun."""
        landing = landing_of()
        self._streams.wait("compute", landing.arrived)
        for memory in landing.own:
            self._streams.hand_over(memory)
        self._under_way.pop(block, None)
        return landing.content


@dataclass(frozen=True, kw_only=True, slots=True)
class _Landing:
    """A block on its way to the device."""

    content: Any
    "Content of the block on the device."
    own: Sequence[Tensor]
    "Memory beyond the block's, for runs that do not fit."
    arrived: Mark
    "Mark after the copies."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    """Reads blocks and queues their copies, in any thread. It must not hold the transport, which ends the loader's thread."""

    sources: Sources
    streams: Streams
    staging: PinnedPool
    chunks: ChunkParcels
    timeline: EventRecorder | None

    def load(self, block: Block, memory: Tensor, free: Mark, *, lies_pinned: bool) -> _Landing:
        """Read a block and queue its copy to the device's ``memory``, which is free after the mark ``free``."""
        name = block.label
        with recorded(None if self.timeline is None else self.timeline.of_host, "load", f"{name}, read"):
            parcel, landed = self._parcel(block, lies_pinned=lies_pinned)
        with self.streams.on("load"):
            self.streams.wait("load", free)
            with recorded(self.timeline, "load", name, memory.nbytes - MOST_TENSORS * ALIGNMENT):
                copies, own = self._copied(parcel.runs, memory)
            arrived = self.streams.mark("load")
        views = parcel.views(copies)
        return _Landing(content=landed(lambda _: next(views)), own=own, arrived=arrived)

    def _parcel(
        self, block: Block, *, lies_pinned: bool
    ) -> tuple[Parcel, Callable[[Callable[[Tensor], Tensor]], Any]]:
        """The parcel of a block, and what makes its content of the tensors on the device."""
        if block.kind == "edges":
            known = self.sources.known_as(block)
            chunk = self.chunks.of(known, partial(self.sources.load, block), lasting=lies_pinned)
            return chunk.parcel, partial(chunk.landed, self.chunks.dialect)
        content = self.sources.load(block)

        def landed(view: Callable[[Tensor], Tensor]) -> Any:
            return mapped(content, lambda tensor: tensor if self.streams.holds(tensor) else view(tensor))

        return Parcel([tensor for tensor in tensors_of(content) if not self.streams.holds(tensor)]), landed

    def _copied(self, runs: Sequence[Tensor], memory: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Queue the copies of runs side by side into a block's memory, and where it has no room, into memory of their own."""
        copies: list[Tensor] = []
        own: list[Tensor] = []
        taken, room = 0, memory.nbytes
        for run in runs:
            num_bytes, begin = run.nbytes, -(-taken // ALIGNMENT) * ALIGNMENT
            if begin + num_bytes <= room:
                into, taken = memory[begin : begin + num_bytes], begin + num_bytes
            else:
                # This lane allocates the memory, so only this lane's earlier copies can have used it.
                into = self.streams.empty(num_bytes)
                own.append(into)
            copies.append(into)
            if not num_bytes:
                continue
            if self.streams.is_pinned(run):
                self.streams.copy(into, run)
            else:
                for part, here in zip(run.split(PIECE_BYTES), into.split(PIECE_BYTES), strict=True):
                    self._by_way_of_staging(here, part)
        return copies, own

    def _by_way_of_staging(self, into: Tensor, part: Tensor) -> None:
        # Pieces have two sizes only, so that they are reused: pinning one takes longer than copying it.
        piece = self.staging.take(SMALL_BYTES if len(part) <= SMALL_BYTES else PIECE_BYTES)
        staged = copy_alone_into(piece[: len(part)], part)
        self.streams.copy(into, staged)
        self.staging.give(piece, self.streams.mark("load"))


def _end(streams: Streams, loader: ThreadPoolExecutor, under_way: dict[Block, Tensor]) -> None:
    loader.shutdown(wait=True, cancel_futures=True)
    streams.finish(streams.mark("load"))
    streams.finish(streams.mark("store"))
    under_way.clear()
