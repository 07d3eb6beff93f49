"""Streams that have no device: what computes runs at once, and copies as late as what waits for them allows.

So a copy that nobody waits for is never made, and one whose source is changed too soon is wrong. Memory "of the device"
begins as NaN. What must be waited for is checked when a copy is queued. Lanes of devices that belong together wait for marks of
each other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from sagann.runtime.device.streams import Queue


class LateMark(NamedTuple):
    """How much a lane had been given, and when."""

    streams: LateStreams
    lane: Queue
    count: int
    tick: int
    at_s: float


class LateStreams:
    """See the module. ``beside`` is another device of the same model."""

    device = torch.device("cpu")
    recording = None

    def __init__(self, beside: LateStreams | None = None) -> None:
        self.pinned_bytes = 0
        self.tick = 0
        "Counts what computing has been given: memory and steps."
        self.last_step = 0
        self.copied = {"load": 0, "store": 0}
        self.unforeseen = 0
        "Pieces of memory that blocks took beyond what was planned."
        self._queues: dict[Queue, deque[tuple[set[int], Callable[[], object]]]] = {
            "load": deque(),
            "store": deque(),
            "exchange": deque(),
            "receive": deque(),
        }
        self._given: dict[Queue, int] = dict.fromkeys(self._queues, 0)
        self._done: dict[Queue, int] = dict.fromkeys(self._queues, 0)
        # By lane, up to which tick of a device's computing it waits.
        self._waited: dict[Queue, dict[LateStreams, int]] = {lane: {} for lane in self._queues}
        self._thread = threading.local()
        self._lock: threading.RLock = threading.RLock() if beside is None else beside._lock
        self._pinned: list[Tensor] = [] if beside is None else beside._pinned
        # By address, the device whose memory it is, its tick when it was allocated, and whether it still is.
        self._allocated: dict[int, tuple[LateStreams, int, StorageWeakRef]] = (
            {} if beside is None else beside._allocated
        )
        self._all: list[LateStreams] = [] if beside is None else beside._all
        self._all.append(self)

    @property
    def _lane(self) -> Queue:
        return getattr(self._thread, "lane", "compute")

    @contextmanager
    def on(self, lane: Queue) -> Iterator[None]:
        before, self._thread.lane = self._lane, lane
        try:
            yield
        finally:
            self._thread.lane = before

    def step(self) -> None:
        """A step begins."""
        self.tick += 1
        self.last_step = self.tick

    def mark(self, lane: Queue) -> LateMark:
        with self._lock:
            return LateMark(self, lane, self._given.get(lane, 0), self.tick, time.perf_counter())

    def wait(self, lane: Queue, mark: LateMark) -> None:
        with self._lock:
            # Not by finish: the host does not wait.
            if lane == "compute":
                mark.streams._run(mark)
                return
            if mark.lane == "compute":
                waited = self._waited[lane]
                waited[mark.streams] = max(waited.get(mark.streams, -1), mark.tick)
            self._queue(lane, set(), partial(mark.streams._run, mark))

    def finish(self, mark: LateMark) -> None:
        with self._lock:
            mark.streams._run(mark)

    def finish_copies(self) -> None:
        for lane in self._queues:
            self.finish(self.mark(lane))

    def is_passed(self, mark: LateMark) -> bool:
        with self._lock:
            return mark.lane == "compute" or mark.streams._done[mark.lane] >= mark.count

    def seconds(self, first: LateMark, last: LateMark) -> float:
        return last.at_s - first.at_s

    def copy(self, into: Tensor, source: Tensor) -> None:
        lane = self._lane
        if lane != "exchange":
            assert self.is_pinned(into) or self.is_pinned(source), "the device cannot copy it by itself"
        if lane == "compute":
            into.copy_(source)
            return
        with self._lock:
            waited = self._waited[lane]
            whose, allocated, storage = self._allocated.get(into.untyped_storage().data_ptr(), (self, -1, None))
            is_known = storage is not None and not storage.expired()
            if not is_known:
                # Other memory, which may lie where a block has lain: small tensors, and the result.
                whose, allocated = self, -1
            if lane == "store":
                assert waited.get(self, -1) >= self.last_step, "the last writer may not be done"
            else:
                # What computed before may use the memory still.
                assert waited.get(whose, -1) >= allocated
                assert lane == "load" or whose._lane == ("receive" if whose is not self else "exchange")
            if lane != "exchange" or is_known:
                self.copied[lane] = self.copied.get(lane, 0) + into.nbytes
            touched = {each.untyped_storage().data_ptr() for each in (into, source)}
            self._queue(lane, touched, partial(into.copy_, source))

    def send(self, to: LateStreams, copies: Sequence[tuple[Tensor, Tensor]], after: Sequence[LateMark]) -> LateMark:
        for mark in after:
            self.wait("exchange", mark)
        with to.on("receive"), self.on("exchange"):
            for into, source in copies:
                self.copy(into, source)
        return self.mark("exchange")

    def turn(self, level: int | None = None) -> None:
        """Nothing is recorded."""

    def end(self) -> None:
        """Nothing is recorded."""

    def lent(self, tensor: Tensor) -> Tensor:
        return tensor

    def launch(self, work: Callable[[], None]) -> None:
        lane = self._lane
        if lane == "compute":
            work()
            return
        with self._lock:
            self._queue(lane, set(), work)

    def empty(self, num_bytes: int) -> Tensor:
        memory = torch.full((num_bytes,), 0xFF, dtype=torch.uint8)
        with self._lock:
            if self._lane == "compute":
                self.tick += 1
                self._allocated[memory.data_ptr()] = self, self.tick, StorageWeakRef(memory.untyped_storage())
            else:
                self.unforeseen += 1
        return memory

    def hand_over(self, tensor: Tensor) -> None:
        assert self._lane == "compute"

    def pinned(self, num_bytes: int) -> Tensor:
        memory = torch.full((num_bytes,), 0xFF, dtype=torch.uint8)
        # Kept, so that an address means one thing.
        self._pinned.append(memory)
        self.pinned_bytes += num_bytes
        return memory

    def is_pinned(self, tensor: Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return any(memory.data_ptr() == address for memory in self._pinned)

    def release(self) -> None:
        pass

    def is_in_use(self, tensor: Tensor) -> bool:
        """Whether a copy that has not run yet touches a tensor's memory in a device."""
        address = tensor.untyped_storage().data_ptr()
        with self._lock:
            return any(
                address in touched for each in self._all for queue in each._queues.values() for touched, _ in queue
            )

    def _queue(self, lane: Queue, touched: set[int], work: Callable[[], object]) -> None:
        self._queues[lane].append((touched, work))
        self._given[lane] += 1

    def _run(self, mark: LateMark) -> None:
        while mark.lane != "compute" and self._done[mark.lane] < mark.count:
            _, work = self._queues[mark.lane].popleft()
            self._done[mark.lane] += 1
            work()
