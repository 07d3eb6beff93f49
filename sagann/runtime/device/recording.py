"""Recording: an epoch that is queued once, captured into a CUDA graph at its second turn, and launched from then on.

A graph repeats what the host has queued, with the same addresses and the same numbers. What may change from epoch to epoch therefore lies in a
:class:`Table`: seeds and learning rates, which one copy brings to the device before each launch. The host draws seeds as it does for an epoch
that is queued, so both have the same bits. What else a graph has baked in is compared before each launch; a change ends the recording.

A graph has the work of one device, and a recording of several has one for each segment (:mod:`sagann.plan.segments`), captured one after the
other. Between graphs, ordinary copies and marks on streams are queued again in each epoch: what a graph waits for, it waits for as a whole.

A capture runs nothing. Where it fails, the same work is queued from the same random numbers, now and from then on, and ``cause`` says why.
"""

from __future__ import annotations

import gc
import math
import os
import random
import sysconfig
import threading
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.errors import first_line
from sagann.kernels.seeds import drawn_seed, generators_of, placing_seeds
from sagann.runtime.device.streams import Mark, Queue, Streams

_NOT_THE_USERS = tuple(
    f"{folder}{os.sep}" for folder in (*torch.__path__, Path(__file__).parents[2], sysconfig.get_path("stdlib"))
)
"Folders of code that is not the user's."


class SegmentMark(Mark):
    """A point in a lane of a device, and the segment that has it, if its work is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.segment: Segment | None = None


class Segment:
    """A graph of a device's work, what it waits for, and the mark after it."""

    def __init__(self, lanes: Streams, level: int | None, after: list[Mark]) -> None:
        self.lanes, self.place, self.after = lanes, (lanes.device, level), after
        self.graph, self.ended = torch.cuda.CUDAGraph(), SegmentMark()

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
        self.waiting: defaultdict[torch.device, list[Mark]] = defaultdict(list)
        "By device, what its next segment waits for."
        self.queue: list[Callable[[], None]] = []
        "What is queued for an epoch."
        self._before_bytes = 0

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
        self._main.reserved[device] += torch.cuda.memory_reserved(device) - self._before_bytes
        self.last[device] = segment
        self.queue.append(partial(segment.launch, stream))

    def between(self, mark: Mark) -> Mark:
        """What other graphs wait for: a mark, or that after the graph which has it; where that has no work yet, after the one before."""
        segment = mark.segment if isinstance(mark, SegmentMark) else None
        if segment is not None and segment is self.open:
            segment = self.last.get(segment.lanes.device)
            mark = SegmentMark()
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
        mark = SegmentMark()
        mark.segment = self._open or recording.last.get(self.device)
        if self._open is not None:
            mark.record(self._stream(lane))
        return mark

    def wait(self, lane: Queue, mark: Mark) -> None:
        recording, segment = self.recording, mark.segment if isinstance(mark, SegmentMark) else None
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
        recording, arrived = self.recording, SegmentMark()
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
        return segments.launch


class Table:
    """The numbers of an epoch that the host decides, on the device: learning rates, seeds, and what else the work is given.

    The host writes two pinned copies in turn, so that it need not wait for the copy of the last epoch.
    """

    def __init__(self, streams: Streams, num_rates: int, num_seeds: int, num_given: int = 0) -> None:
        self._streams = streams
        # A number has 16 bytes, so that all addresses are aligned alike: no kernel is compiled anew.
        shape = (num_rates + num_given + num_seeds, 2)
        self._on_host = streams.pinned(2 * 16 * shape[0]).view(torch.int64).reshape(2, *shape)
        self._on_device = torch.zeros(shape, dtype=torch.int64, device=streams.device)
        self._turn = 0
        self.rates = self._on_device.view(torch.float32)[:num_rates, 0].unbind()
        "The learning rate of each group of parameters, a float32 scalar."
        self.given = self._on_device[num_rates : num_rates + num_given, 0]
        "What the work is given: int64 [num_given]."
        self.seeds = self._on_device[num_rates + num_given :, 0].unbind()
        "The seeds in the order in which they are drawn, int64 scalars."

    def send(self, rates: Sequence[float], seeds: Sequence[int], given: Tensor | None = None) -> None:
        """Queue the copy of an epoch's numbers."""
        self._turn = 1 - self._turn
        numbers, first = self._on_host[self._turn], len(rates)
        numbers.view(torch.float32)[:first, 0] = torch.tensor(rates)
        if given is not None:
            numbers[first : first + len(given), 0] = given
        first += len(self.given)
        numbers[first : first + len(seeds), 0] = torch.tensor(seeds, dtype=torch.int64)
        self._streams.copy(self._on_device, numbers)


Work = Callable[..., Tensor]
"""Queues an epoch, or a batch: gets the learning rates on the device, scalars, and if there are any the numbers that it is given, int64 [num_given]
on the device. Gives its numbers, on the device."""


class Recording:
    """See the module. It runs inside :meth:`GraphStreams.queue`.

    Args:
        make: queues the work of an epoch.
        baked: what a graph of the work has baked in, by name: addresses, versions, options. What changes it in each epoch cannot be recorded.
        keep: keeps what the work changes on the host, and gives what puts it back.
        num_given: how many numbers the work is given each time, besides rates.
        cause: why the work cannot be recorded; None where it is tried.
        most_bytes: most bytes of the device that recordings may reserve.
    """

    def __init__(
        self,
        streams: GraphStreams,
        make: Work,
        baked: Callable[[], Mapping[str, object]],
        keep: Callable[[], Callable[[], None]],
        *,
        num_rates: int,
        num_given: int = 0,
        cause: str | None = None,
        most_bytes: float = math.inf,
    ) -> None:
        self.cause = cause
        "Why epochs are queued one by one; None while they are recorded, or will be."
        self.queued_s = 0.0
        "Seconds of the host that the last epoch took to be queued."
        self._streams, self._make, self._baked_now, self._keep = streams, make, baked, keep
        self._num_rates, self._num_given, self._most_bytes = num_rates, num_given, most_bytes
        self._table = Table(streams, num_rates, 0, num_given)
        self._num_seeds: int | None = None
        "Seeds that an epoch draws; None before the first one."
        self._baked: Mapping[str, object] = {}
        # A graph, and what it writes its numbers to. The work itself is kept, with all that it reads.
        self._launch: Callable[[], None] | None = None
        self._numbers: Tensor | None = None

    def run(self, rates: Sequence[float], given: Tensor | None = None) -> Tensor:
        """Queue or launch an epoch, which gets the int64 numbers that are given; gives its own, on the device until the next epoch."""
        if self._launch is not None and (name := _changed(self._baked, self._baked_now())):
            self._end(f"{name} changed after epochs were recorded")
        seeds: list[int] | None = None
        if self._launch is not None:
            seeds = [int(drawn_seed()) for _ in range(self._num_seeds or 0)]
        elif self.cause is None and self._num_seeds is not None:
            seeds = self._capture()
        if seeds is None or self._launch is None or self._numbers is None:
            return self._queue(rates, given)
        self._table.send(rates, seeds, given)
        self._launch()
        return self._numbers

    def _queue(self, rates: Sequence[float], given: Tensor | None) -> Tensor:
        seeds: list[int] = []

        def counted(seed: int) -> int:
            seeds.append(seed)
            return seed

        began_s = time.perf_counter()
        self._table.send(rates, (), given)
        with placing_seeds(counted):
            numbers = self._made(self._table)
        self.queued_s, self._num_seeds = time.perf_counter() - began_s, len(seeds)
        return numbers

    def _capture(self) -> list[int] | None:
        """Record an epoch; gives the seeds that it has drawn, or None where it cannot be recorded: then nothing has happened."""
        before, put_back, states = self._baked_now(), self._keep(), _random_states(self._streams.device)
        table = Table(self._streams, self._num_rates, self._num_seeds or 0, self._num_given)
        seeds = list[int]()

        def placed(seed: int) -> Tensor:
            seeds.append(seed)
            if len(seeds) > len(table.seeds):
                raise RuntimeError(_OTHER_SEEDS)
            return table.seeds[len(seeds) - 1]

        def work() -> None:
            with placing_seeds(placed):
                self._numbers = self._made(table)

        collects = gc.isenabled()
        # A kernel or a graph that is freed meanwhile would spoil the capture.
        gc.collect()
        gc.disable()
        try:
            self._launch = self._streams.capture(work)
        except Exception as error:  # noqa: BLE001 - work that is wrong itself fails again where it is queued.
            cause: str | None = _cause_of(error)
        else:
            cause = _why_not(self._streams.device, states, seeds, table)
            if cause is None and (name := _changed(before, self._baked_now())):
                cause = f"{name} changes in every epoch"
            if cause is None and self._streams.reserved_bytes > self._most_bytes:
                reserved, most = format_bytes(self._streams.reserved_bytes), format_bytes(int(self._most_bytes))
                cause = f"recordings reserve {reserved} of the device, of which {most} are for them"
        finally:
            if collects:
                gc.enable()
        if cause is not None:
            _restore(states, self._streams.device)
            put_back()
            self._end(cause)
            return None
        self._table, self._baked = table, before
        return seeds

    def _made(self, table: Table) -> Tensor:
        return self._make(table.rates, *([table.given] if self._num_given else []))

    def _end(self, cause: str) -> None:
        self.cause, self._launch, self._numbers = cause, None, None


_OTHER_SEEDS = "the model draws a different number of seeds in each epoch"


def _why_not(device: torch.device, states: tuple[Any, ...], seeds: Sequence[int], table: Table) -> str | None:
    """Why a capture that succeeded would not repeat what an epoch does."""
    after = _random_states(device)
    _restore(states, device)
    again = [int(drawn_seed()) for _ in seeds]
    # Random numbers of the host, besides the seeds, are baked in.
    if again != list(seeds) or _random_states(device) != after:
        return "the model draws random numbers on the host"
    return None if len(seeds) == len(table.seeds) else _OTHER_SEEDS


def _random_states(device: torch.device) -> tuple[Any, ...]:
    """The states of the generators that an epoch may draw from."""
    drawn = [bytes(each.get_state().numpy()) for each in generators_of(device)]
    found: Any = np.random.get_state()
    return drawn, random.getstate(), (found[0], found[1].tobytes(), *found[2:])


def _restore(states: tuple[Any, ...], device: torch.device) -> None:
    drawn, python, numpy = states
    for generator, state in zip(generators_of(device), drawn, strict=True):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    random.setstate(python)
    np.random.set_state((numpy[0], np.frombuffer(numpy[1], np.uint32), *numpy[2:]))


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    """The name of the first value that differs."""
    names = {**before, **after}
    return next((name for name in names if before.get(name) != after.get(name)), None)


def _cause_of(error: Exception) -> str:
    """Why a capture failed, with the user's line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "device memory is too small for a CUDA graph of the epoch"
    # CUDA may report its own error at the end of a capture that another one has spoilt.
    for each in (error, error.__context__ or error):
        frames = traceback.extract_tb(each.__traceback__)
        users = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
        if users:
            return f"{first_line(each)} ({Path(users[-1].filename).name}:{users[-1].lineno})"
    return first_line(error)
