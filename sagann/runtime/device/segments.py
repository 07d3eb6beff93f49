"""Segments: the work of an epoch as CUDA graphs, one for each run of a device's operations (:mod:`sagann.plan.segments`).

A graph has the work of one device. Graphs are captured one after the other; the whole epoch of one device is one graph. Between graphs,
ordinary copies and marks on streams are queued again in each epoch: what a graph waits for, it waits for as a whole.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from weakref import WeakSet

import torch
from torch import Tensor

from sagann.runtime.device.streams import Mark, Queue, Streams


class Segment:
    """A graph of a device's work, what it waits for, and the mark after it."""

    def __init__(self, lanes: Streams, level: int | None, after: list[Mark]) -> None:
        self.lanes, self.place, self.after = lanes, (lanes.device, level), after
        self.graph, self.ended = torch.cuda.CUDAGraph(), Mark()

    def launch(self, stream: torch.cuda.Stream) -> None:
        """Queue the graph after what it waits for."""
        with torch.cuda.stream(stream):
            for mark in self.after:
                stream.wait_event(mark)
            self.graph.replay()
            self.ended.record(stream)


class Segments:
    """A recording under way: segments, one of which is captured at a time, and copies between devices, in the order in which they are queued."""

    def __init__(self, main: GraphStreams) -> None:
        self.stream, self.thread, self._main = torch.cuda.current_stream(main.device), threading.get_ident(), main
        self.lanes: set[SegmentStreams] = set()
        "Those that the thread has used."
        self.open: Segment | None = None
        self.last: dict[torch.device, Segment] = {}
        "By device, the last segment that has ended."
        self.segment_of: dict[Mark, Segment] = {}
        "The segments that have marks."
        self.waiting: defaultdict[torch.device, list[Mark]] = defaultdict(list)
        "By device, what its next segment waits for."
        self.queue: list[Callable[[], None]] = []
        "What is queued for an epoch."
        self.reserved, self._before_bytes = Counter[torch.device](), 0
        "By device, memory that the graphs keep for themselves."

    def turn(self, lanes: Streams, level: int | None = None) -> None:
        """Capture what a device is given from now on: in the segment that is open, if it is that of the device and level, or else in a new one."""
        if level is not None and self.open is not None and self.open.place == (lanes.device, level):
            self.open.lanes = lanes
            return
        self.end()
        segment = Segment(lanes, level, self.waiting.pop(lanes.device, []))
        # Graphs share memory: they run one after the other. PyTorch refuses a pool for good once no graph has it.
        pool = next((each.pool() for each in self._main.graphs[lanes.device]), None)
        self._before_bytes = torch.cuda.memory_reserved(lanes.device)
        with lanes.on("compute"):
            # The first segment ends in its own thread, before another device is used. Others may end in a thread of autograd.
            segment.graph.capture_begin(pool, "relaxed" if self.queue else "thread_local")
        self.open = segment

    def end(self) -> None:
        """End the segment that is open."""
        if (segment := self.open) is None:
            return
        lanes, device = segment.lanes, segment.lanes.device
        try:
            lanes.finish_copies()
        finally:
            self.open = None
            # PyTorch warns of a graph without work.
            with lanes.on("compute"), warnings.catch_warnings(action="ignore"):
                stream = torch.cuda.current_stream(device)
                segment.graph.capture_end()
        self._main.graphs[device].add(segment.graph)
        self.reserved[device] += torch.cuda.memory_reserved(device) - self._before_bytes
        self.last[device] = segment
        self.queue.append(partial(segment.launch, stream))

    def between(self, mark: Mark) -> Mark:
        """What other graphs wait for: a mark, or that after the graph which has it; where that has no work yet, after the one before."""
        segment = self.segment_of.get(mark)
        if segment is not None and segment is self.open:
            segment, mark = self.last.get(segment.lanes.device), Mark()
        return mark if segment is None else segment.ended

    def launch(self) -> None:
        """Queue an epoch. The first device waits for all others at its end, so that the next epoch may begin everywhere."""
        for each in self.queue:
            each()
        for mark in (*(each.ended for each in self.last.values()), *chain.from_iterable(self.waiting.values())):
            self.stream.wait_event(mark)


_UNDER_WAY: list[Segments] = []
"The recording under way: at most one. Threads of autograd queue its work as well."


class SegmentStreams(Streams):
    """Lanes of a device whose work may be recorded.

    A mark of the segment that is open is a part of its graph. Any other mark lies between graphs: the whole of the next segment waits for it.

    Args:
        computes: whether work is computed in a lane of its own, in every thread, and not in the thread's current stream.
    """

    def __init__(self, device: torch.device, *, computes: bool = False) -> None:
        super().__init__(device)
        self._own = torch.cuda.Stream(device) if computes else None

    def _stream(self, lane: Queue) -> torch.cuda.Stream:
        return self._own if lane == "compute" and self._own is not None else super()._stream(lane)

    @property
    def recording(self) -> Segments | None:
        """The recording that this thread's work goes to: of the thread that records, and of PyTorch's threads of autograd for lanes that it has used."""
        for each in _UNDER_WAY:
            if each.thread == threading.get_ident():
                each.lanes.add(self)
                return each
            if self in each.lanes and isinstance(threading.current_thread(), threading._DummyThread):
                return each
        return None

    @property
    def _open(self) -> Segment | None:
        segment = None if self.recording is None else self.recording.open
        return segment if segment is not None and segment.lanes.device == self.device else None

    def turn(self, level: int | None = None) -> None:
        """If work is recorded: see :meth:`Segments.turn`. Without a level, a new segment begins."""
        if (recording := self.recording) is not None:
            recording.turn(self, level)

    def end(self) -> None:
        """If work is recorded: end the segment that is open, if it is this device's."""
        if (recording := self.recording) is not None and self._open is not None:
            recording.end()

    def mark(self, lane: Queue) -> Mark:
        if (recording := self.recording) is None:
            return super().mark(lane)
        mark = Mark()
        if (segment := self._open or recording.last.get(self.device)) is not None:
            recording.segment_of[mark] = segment
        if self._open is not None:
            mark.record(self._stream(lane))
        return mark

    def wait(self, lane: Queue, mark: Mark) -> None:
        recording = self.recording
        segment = None if recording is None else recording.segment_of.get(mark)
        if recording is None or (segment is not None and segment is self._open):
            super().wait(lane, mark)
        elif segment is None or segment.lanes.device != self.device:
            after = recording.waiting[self.device] if self._open is None else self._open.after
            after.append(recording.between(mark))

    def finish_copies(self) -> None:
        if self.recording is None:
            super().finish_copies()
            return
        for lane in self._copies:
            with self.on(lane):
                # A graph ends with all lanes that it has reached, and cannot wait for others.
                joins = torch.cuda.is_current_stream_capturing()
            if joins:
                self.wait("compute", self.mark(lane))

    def send(self, to: Streams, copies: Sequence[tuple[Tensor, Tensor]], after: Sequence[Mark]) -> Mark:
        """Queue copies to another device, each into a tensor there, after some marks; returns the mark after them.

        They lie between graphs. A segment of this device ends with it.
        """
        recording, arrived = self.recording, Mark()
        self.end()
        if recording is not None:
            after = [recording.between(mark) for mark in after]

        def queue() -> None:
            for mark in after:
                self._stream("exchange").wait_event(mark)
            with to.on("receive"), self.on("exchange"):
                for into, source in copies:
                    self.copy(into, source)
            arrived.record(self._stream("exchange"))

        (queue if recording is None else partial(recording.queue.append, queue))()
        return arrived

    def lent(self, tensor: Tensor) -> Tensor:
        """The tensor; where work is recorded, another one in its memory, which it does not keep."""
        if self.recording is None:
            return tensor
        storage = tensor.untyped_storage()
        lent = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
        form = tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(lent, *form)


class GraphStreams(SegmentStreams):
    """All that a recording asks of CUDA. Work is queued, captured and launched on one stream, beside the default one, which cannot be captured."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._main = torch.cuda.Stream(device)
        self.graphs: defaultdict[torch.device, WeakSet[torch.cuda.CUDAGraph]] = defaultdict(WeakSet)
        "By device, the graphs of all recordings."
        self.reserved = Counter[torch.device]()
        "By device, memory that all recordings together keep for themselves."

    @property
    def reserved_bytes(self) -> int:
        """Memory that all recordings together keep for themselves, on the device where it is most."""
        return max(self.reserved.values(), default=0)

    @contextmanager
    def queue(self) -> Iterator[None]:
        """Inside the ``with`` block, this thread queues work that can be captured."""
        before = torch.cuda.current_stream(self.device)
        self._main.wait_stream(before)
        try:
            with torch.cuda.stream(self._main):
                yield
        finally:
            before.wait_stream(self._main)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what ``work`` queues, without running it; gives what launches it.

        Raises:
            RuntimeError: the work waits for the device, or CUDA cannot record it.
        """
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        with torch.cuda.stream(self._main):
            segments = Segments(self)
            # PyTorch refuses to wait before it spoils the capture. It warns that it does not know every wait.
            with warnings.catch_warnings(action="ignore"):
                torch.cuda.set_sync_debug_mode("error")
            _UNDER_WAY.append(segments)
            try:
                try:
                    segments.turn(self, 0)
                    work()
                finally:
                    segments.end()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
                _UNDER_WAY.remove(segments)
        segments.segment_of.clear()
        self.reserved.update(segments.reserved)
        return segments.launch
