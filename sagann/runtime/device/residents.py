"""Blocks in a device's memory, and their copies from and to the host, in lanes of their own.

The host queues copies and does not wait; marks order the lanes. All memory of blocks is allocated in the order of the lane
that computes, so memory is reused in the plan's order, and no more is in use than was planned:

- A load gets its memory, and a mark of computing, when the plan comes to the load. Its copy waits for the mark, because
  earlier steps may still use the memory. The first step that reads the block waits for the copy.
- A store's copy waits for the step that wrote the block last. A step that changes or drops the block waits for the copy.

What lies in pinned memory is copied from there. Other loads are prepared by a thread: it reads files, and copies pageable memory
to a ring of pinned pieces. A block that goes to a file comes to a pinned piece, from where a thread writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize

from torch import Tensor

from sagann.kernels.packed import Layout, side_by_side
from sagann.plan.steps import ALL, Beside, Block, Plan
from sagann.plan.timeline import Lane, Span
from sagann.runtime.blocks.host import copy_alone_into
from sagann.runtime.blocks.residents import BytesOf, Copy, Residents, Threads, nothing
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.device.streams import Mark, PinnedPool, Streams
from sagann.runtime.recorder import Recorder, recorded


class EventRecorder(Recorder):
    """Spans of one epoch as the device runs them. The host only queues them; :meth:`settle` gives them to the timeline."""

    def __init__(self, streams: Streams, timeline: Recorder) -> None:
        super().__init__()
        self.of_host = timeline
        "Timeline for work of the host."
        self._streams = streams
        self._queued: list[tuple[Span, Mark, Mark]] = []
        "Spans whose times are not known yet, each between two marks."
        # Both clocks are read at one moment.
        self._began = streams.mark("compute")
        streams.finish(self._began)
        self._offset_s = timeline.now_s

    @contextmanager
    def span(self, lane: Lane, name: str, num_bytes: int = 0) -> Iterator[None]:
        """Record the work that is queued in the lane inside the ``with`` block."""
        first = self._streams.mark(lane)
        try:
            yield
        finally:
            span = Span(lane=lane, name=name, start_s=0.0, seconds=0.0, num_bytes=num_bytes)
            self._queued.append((span, first, self._streams.mark(lane)))

    def settle(self) -> None:
        """Wait for the queued work, and give its spans to the timeline. No thread may queue work meanwhile."""
        for span, first, last in self._queued:
            self._streams.finish(last)
            start_s = self._offset_s + self._streams.seconds(self._began, first)
            self.of_host.spans.append(replace(span, start_s=start_s, seconds=self._streams.seconds(first, last)))
        self._queued.clear()


SPARE_BYTES = 2048
"Bytes beyond those that are planned for a block, so that each of its tensors can be aligned."
PIECE_BYTES = 16 << 20
"Bytes of pageable memory that are copied at a time: one piece goes to the device while the next is prepared."
SMALL_BYTES = 64 << 10
"Bytes of a piece for tensors that are no larger."


class DeviceResidents(Residents):
    """Blocks on a device; ``staging`` is pinned memory for copies from and to pageable memory and files."""

    timeline: EventRecorder | None
    _threads: Threads

    def __init__(
        self,
        plan: Plan,
        sources: Sources,
        bytes_of: BytesOf,
        timeline: Recorder | None,
        beside: Beside,
        *,
        streams: Streams,
        staging: PinnedPool,
    ) -> None:
        events = None if timeline is None else EventRecorder(streams, timeline)
        super().__init__(plan, sources, bytes_of, events, beside)
        self._streams, self._staging = streams, staging
        self._reader = _Reader(sources, streams, staging, events)
        # Memory of copies under way is kept until they are done, even if this object is dropped.
        self._arriving: dict[Block, Tensor] = {}
        # By block, what waits on the host until its last store has ended.
        self._stored: dict[Block, Callable[[], None]] = {}
        self._finish = finalize(self, _finish, streams, self._threads, self._arriving)
        self._finish.atexit = False

    def load(self, block: Block, after: Sequence[Copy]) -> Copy:
        # The lane that computes has waited for the stores of what was dropped. Pieces of the block may be in use.
        for store in after if block.interval == ALL else ():
            store.result()
        num_bytes = self._bytes_of(block)
        memory = self._arriving[block] = self._streams.empty(num_bytes + SPARE_BYTES)
        load = partial(self._reader.load, block, num_bytes, memory, self._streams.mark("compute"))
        # What ends the copy must not hold this object, which holds the copy.
        landed = partial(_landed, self._streams, self._arriving, block)
        if self._sources.lies_in_memory(block):
            # To queue a copy takes less than to hand it to the thread, with which this one would share Python's lock.
            landing = load(nothing)
            return Copy(partial(landed, lambda: landing))
        job = self._threads.loader.submit(load, partial(_await_all, self._stored_of(block)))
        return Copy(partial(landed, job.result))

    def _stored_of(self, block: Block) -> list[Callable[[], None]]:
        """What waits until that from which a block is loaded lies on its host."""
        if block.interval != ALL:
            return [self._stored.get(block.whole, nothing)]
        return [wait for each, wait in self._stored.items() if each._replace(interval=ALL) == block]

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
        return Copy(partial(streams.wait, "compute", arrived))

    def await_store(self, block: Block) -> None:
        self._stored.get(block, nothing)()

    def close(self) -> None:
        self._finish()
        super().close()
        if self.timeline is not None:
            self.timeline.settle()


def _await_all(waits: Sequence[Callable[[], None]]) -> None:
    for wait in waits:
        wait()


class _Landing(NamedTuple):
    """A block on its way to the device."""

    content: Any
    own: Tensor | None
    "Memory beyond the block's, where its tensors do not fit."
    arrived: Mark


def _landed(
    streams: Streams, arriving: dict[Block, Tensor], block: Block, landing_of: Callable[[], _Landing]
) -> Any:
    """The content of a block whose load was begun."""
    content, own, arrived = landing_of()
    streams.wait("compute", arrived)
    if own is not None:
        streams.hand_over(own)
    arriving.pop(block, None)
    return content


class _Reader(NamedTuple):
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
            return _Landing(parts.content(copies), own, self.streams.mark("load"))

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


def _finish(streams: Streams, threads: Threads, arriving: dict[Block, Tensor]) -> None:
    threads.end()
    streams.finish(streams.mark("load"))
    streams.finish(streams.mark("store"))
    arriving.clear()
