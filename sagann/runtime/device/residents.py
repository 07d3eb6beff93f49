"""Blocks in a device's memory, and their copies from and to the host, in lanes of their own.

The host queues copies and does not wait; marks order the lanes. All memory of blocks is allocated in the order of the lane
that computes, so memory is reused in the plan's order, and no more is in use than was planned:

- A load gets its memory, and a mark of computing, when the plan comes to the load. Its copy waits for the mark, because
  earlier steps may still use the memory. The first step that reads the block waits for the copy.
- A copy from another device takes memory in the same way, and also waits until the block is there: for its load, or the step that made it.
- A store's copy waits for the step that wrote the block last. A step that changes or drops the block waits for the copy.

What lies in pinned memory is copied from there. Other loads are prepared by a thread: it reads files, and copies pageable memory
to a ring of pinned pieces. A block that goes to a file comes to a pinned piece, from where a thread writes it. An epoch without such threads
can be recorded (:mod:`sagann.runtime.device.recording`): its lanes begin with a mark of computing, and computing waits for them at the end.
Several devices turn to the segments of the plan one after the other (:mod:`sagann.plan.segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize

import torch
from torch import Tensor

from sagann.kernels.packed import Layout, side_by_side
from sagann.plan.segments import is_between_devices
from sagann.plan.steps import DEVICE, Beside, Block, Move, Plan, Step
from sagann.plan.timeline import Lane, Span
from sagann.runtime.blocks.host import Parts, copy_alone_into
from sagann.runtime.blocks.residents import BytesOf, Copy, Residents, Threads, nothing, tensors_of
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.device.segments import SegmentStreams
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


class Lanes(NamedTuple):
    """The lanes of a device, and pinned memory for its copies from and to pageable memory and files."""

    streams: SegmentStreams
    staging: PinnedPool


class DeviceResidents(Residents):
    """Blocks on one device or several: ``devices`` are those that plans name device0, device1, ..."""

    def __init__(
        self,
        plan: Plan,
        sources: Sources,
        bytes_of: BytesOf,
        timeline: Recorder | None,
        beside: Beside,
        *,
        devices: Sequence[Lanes],
    ) -> None:
        super().__init__(plan, sources, bytes_of, timeline, beside)
        self._devices = {
            f"device{number}": _Device(lanes, sources, timeline) for number, lanes in enumerate(devices)
        }
        # By number in the plan, the copies for which lanes of other devices may wait.
        self._copies: dict[int, Copy] = {}
        self._levels = plan.levels
        # Memory of copies under way is kept until they are done, even if this object is dropped.
        self._arriving: dict[Block, Tensor] = {}
        # Blocks that come, until a step of their device waits for them.
        self._coming: dict[Block, _Arrival] = {}
        # By block, what waits on the host until its last store has ended.
        self._stored: dict[Block, Callable[[], None]] = {}
        self._finish = finalize(self, _finish, list(self._devices.values()), self._arriving)
        self._finish.atexit = False

    def turn(self, number: int, operation: Step | Move) -> None:
        # What queues nothing on its device needs no segment there.
        is_output = is_between_devices(operation) and isinstance(operation, Step)
        if self._levels and operation.kind != "drop" and not is_output:
            self._devices[operation.owner].streams.turn(self._levels[number])

    def turn_back(self) -> None:
        if self._levels:
            self._devices[DEVICE].streams.turn()

    def bring(self, parts: Iterable[tuple[str, Mapping[str, Tensor]]], owner: str) -> list[Mapping[str, Tensor]]:
        to, found = self._devices[owner].streams, list[Mapping[str, Tensor]]()
        for name, tensors in parts:
            at, copies = self._devices[name].streams, tensors
            if at is not to and tensors:
                # In a capture that is not relaxed, CUDA refuses to allocate memory of another device.
                at.end()
                with to.on("compute"):
                    copies = {key: torch.empty_like(each, device=to.device) for key, each in tensors.items()}
                self._send(at, to, [(copies[key], each.detach()) for key, each in tensors.items()])
            found.append(copies)
        return found

    def give(self, into: Tensor, rows: Tensor, owner: str) -> None:
        at, to = self._devices[owner].streams, self._devices[DEVICE].streams
        if at is to:
            super().give(into, rows, owner)
        else:
            self._send(at, to, [(into, at.lent(rows))])

    def _send(self, at: SegmentStreams, to: SegmentStreams, copies: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Copy from one device to another, between what both have computed so far and what they compute next."""
        arrived = at.send(to, copies, [at.mark("compute"), to.mark("compute")])
        for streams in (at, to):
            streams.wait("compute", arrived)

    @contextmanager
    def running(self, step: Step) -> Iterator[None]:
        at = self._devices[step.owner]
        with at.streams.on("compute"), recorded(at.events, "compute", step.label):
            yield

    def load(self, block: Block, after: Sequence[Copy]) -> Copy:
        at, num_bytes = self._devices[block.owner], self._bytes_of(block)
        parts = self._sources.load(block) if self._sources.lies_in_memory(block) else None
        # What has no bytes lies nowhere, and needs no thread.
        regions = [] if parts is None else [each.memory for each in parts.regions if each.memory.nbytes]
        if not all(map(at.streams.is_pinned, regions)):
            parts = None
        most_bytes = max(num_bytes + SPARE_BYTES, 0 if parts is None else _bytes_of(parts))
        with at.streams.on("compute"):
            memory = self._arriving[block] = at.streams.empty(most_bytes)
        # The lane that computes has waited for the stores of what was dropped here, and not for what other devices copy.
        marks = [at.streams.mark("compute"), *(copy.mark() for copy in after)]
        load = partial(at.reader.load, block, num_bytes, memory, marks)
        if parts is not None:
            # To queue a copy takes less than to hand it to the thread, with which this one would share Python's lock.
            landing = load(partial(Parts, *parts))
            return self._comes(block, lambda: landing)
        read = partial(_read_stored, self._stored.get(block.outside, nothing), self._sources, block)
        return self._comes(block, at.threads.loader.submit(load, read).result)

    def pass_on(self, move: Move, after: Sequence[Copy]) -> Copy:
        block, source = move.block, move.source
        if block.kind == "edges" or source is None:
            # They lie on the host as well, for good, and a chunk is more than its tensors.
            return self.load(block, [])
        at, to = self._devices[source.owner], self._devices[block.owner]
        if source in self._coming:
            # A block is passed on as soon as it has come; steps of the device that has it need not wait for it.
            content, _, ready = self._coming[source].landing()
        else:
            content, ready = self._blocks[source], at.streams.mark("compute")
        tensors = tensors_of(content)
        with to.streams.on("compute"):
            memory = self._arriving[block] = to.streams.empty(move.num_bytes + SPARE_BYTES)
        views, lent = Layout(tensors).views(memory), at.streams.lent
        copies = [(lent(view), lent(tensors[name].detach())) for name, view in views.items()]
        marks = [ready, to.streams.mark("compute"), *(copy.mark() for copy in after)]
        with recorded(at.events, "exchange", block.label, move.num_bytes):
            arrived = at.streams.send(to.streams, copies, marks)
        landing = _Landing(views.get("", views), None, arrived)
        return self._comes(block, lambda: landing)

    def _comes(self, block: Block, landing_of: Callable[[], _Landing]) -> Copy:
        arrival = self._coming[block] = _Arrival(landing_of)
        # What ends the copy must not hold this object, which holds the copy.
        streams = self._devices[block.owner].streams
        return Copy(
            partial(_landed, streams, self._arriving, self._coming, block), owner=block.owner, mark=arrival.mark
        )

    def store(self, block: Block, tensors: Mapping[str, Tensor], after: Sequence[Copy] = ()) -> Copy:
        at, layout, outside = self._devices[block.owner], Layout(tensors), block.outside
        streams = at.streams
        staged = None if self._host.lies_in_memory else at.staging.take(layout.num_bytes)
        views = self._host.room(outside, layout) if staged is None else layout.views(staged)
        for mark in (streams.mark("compute"), *(copy.mark() for copy in after)):
            streams.wait("store", mark)
        with streams.on("store"):
            try:
                with recorded(at.events, "store", block.label, self._bytes_of(block)):
                    for name, view in views.items():
                        streams.copy(view, tensors[name].detach())
            except BaseException:
                if staged is not None:
                    # Copies that were queued before the error may be under way.
                    at.staging.give(staged, streams.mark("store"))
                raise
            arrived = streams.mark("store")
        self._stored[outside] = partial(streams.finish, arrived)
        if staged is not None:
            put, release = partial(self._host.put, outside, views), partial(at.staging.give, staged)
            self._stored[outside] = at.threads.store(put, arrive=self._stored[outside], release=release).result
        return Copy(partial(streams.wait, "compute", arrived), owner=block.owner, mark=lambda: arrived)

    def await_store(self, block: Block) -> None:
        self._stored.get(block.outside, nothing)()

    def close(self) -> None:
        self._finish()
        super().close()
        self._copies.clear()
        self._coming.clear()
        for each in self._devices.values():
            if each.events is not None:
                each.events.settle()

    def _begin(self, number: int, copy: Copy, loaded: Block | None) -> None:
        if len(self._devices) > 1:
            self._copies[number] = copy
        super()._begin(number, copy, loaded)

    def _await(self, number: int, owner: str) -> None:
        for each in self._waits_of(number):
            copy = self._copies.get(each)
            if copy is None or copy.owner == owner:
                self._end(each)
            else:
                self._devices[owner].streams.wait("compute", copy.mark())

    def _before(self, number: int, move: Move) -> Sequence[Copy]:
        found = [self._copies[each] for each in self._waits_of(number) if each in self._copies]
        return [copy for copy in found if copy.owner != move.owner]


class _Device:
    """The lanes and threads of one device."""

    def __init__(self, lanes: Lanes, sources: Sources, timeline: Recorder | None) -> None:
        self.streams, self.staging = lanes
        self.threads = Threads()
        self.events = None if timeline is None else EventRecorder(self.streams, timeline)
        self.reader = _Reader(self.streams, self.staging, self.events)


class _Landing(NamedTuple):
    """A block on its way to the device."""

    content: Any
    own: Tensor | None
    "Memory beyond the block's, where its tensors do not fit."
    arrived: Mark


class _Arrival:
    """A block that comes; the mark after its copy outlives it."""

    def __init__(self, landing_of: Callable[[], _Landing]) -> None:
        self.landing = landing_of
        "Gives the block, once its copy is queued."
        self._arrived: Mark | None = None

    def take(self) -> _Landing:
        """The block, which is not kept here any longer."""
        found = self.landing()
        self._arrived = found.arrived
        del self.landing
        return found

    def mark(self) -> Mark:
        return self.landing().arrived if self._arrived is None else self._arrived


def _landed(streams: Streams, arriving: dict[Block, Tensor], coming: dict[Block, _Arrival], block: Block) -> Any:
    """The content of a block that was coming; steps of its device that follow run after its copy."""
    content, own, arrived = coming.pop(block).take()
    streams.wait("compute", arrived)
    if own is not None:
        streams.hand_over(own)
    arriving.pop(block, None)
    return content


class _Reader(NamedTuple):
    """Reads blocks and queues their copies, in any thread."""

    streams: Streams
    staging: PinnedPool
    timeline: EventRecorder | None

    def load(
        self, block: Block, num_bytes: int, memory: Tensor, after: Sequence[Mark], read: Callable[[], Parts]
    ) -> _Landing:
        """Read a block, and queue its copy to the device's ``memory`` after some marks: that its memory is free, and that others have stored."""
        name = block.label
        with recorded(None if self.timeline is None else self.timeline.of_host, "load", f"{name}, read"):
            parts = read()
        with self.streams.on("load"):
            for mark in after:
                self.streams.wait("load", mark)
            with recorded(self.timeline, "load", name, num_bytes):
                needed_bytes = _bytes_of(parts)
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


def _read_stored(stored: Callable[[], None], sources: Sources, block: Block) -> Parts:
    stored()
    return sources.load(block)


def _bytes_of(parts: Parts) -> int:
    return sum(region.layout.num_bytes for region in parts.regions)


def _finish(devices: Sequence[_Device], arriving: dict[Block, Tensor]) -> None:
    # No thread may queue copies that wait for those of another device.
    for each in devices:
        each.threads.end()
    for each in devices:
        each.streams.finish_copies()
    arriving.clear()
