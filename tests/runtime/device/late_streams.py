"""Streams that have no device: what computes runs at once, and copies as late as what waits for them allows.

So a copy that nobody waits for is never made, and one whose source is changed too soon is wrong. Memory "of the device"
begins as NaN. What must be waited for is checked when a copy is queued.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sagann.plan.timeline import Lane


class LateMark(NamedTuple):
    """How much a lane had been given, and when."""

    lane: Lane
    count: int
    tick: int
    at_s: float


class LateStreams:
    """See the module."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.pinned_bytes = 0
        self.tick = 0
        "Counts what computing has been given: memory and steps."
        self.last_step = 0
        self.copied = {"load": 0, "store": 0}
        self.unforeseen = 0
        "Pieces of memory that blocks took beyond what was planned."
        self._pinned: list[Tensor] = []
        self._allocated: dict[int, int] = {}
        self._queues: dict[Lane, deque[tuple[int, Callable[[], object]]]] = {"load": deque(), "store": deque()}
        self._given = {"load": 0, "store": 0}
        self._done = {"load": 0, "store": 0}
        self._waited = {"load": -1, "store": -1}
        self._thread = threading.local()
        self._lock = threading.RLock()

    @property
    def _lane(self) -> Lane:
        return getattr(self._thread, "lane", "compute")

    @contextmanager
    def on(self, lane: Lane) -> Iterator[None]:
        before, self._thread.lane = self._lane, lane
        try:
            yield
        finally:
            self._thread.lane = before

    def step(self) -> None:
        """A step begins."""
        self.tick += 1
        self.last_step = self.tick

    def mark(self, lane: Lane) -> LateMark:
        with self._lock:
            return LateMark(lane, self._given.get(lane, 0), self.tick, time.perf_counter())

    def wait(self, lane: Lane, mark: LateMark) -> None:
        with self._lock:
            if lane == "compute":
                self._run(mark)
                return
            if mark.lane == "compute":
                self._waited[lane] = max(self._waited[lane], mark.tick)
            self._queue(lane, 0, partial(self._run, mark))

    def finish(self, mark: LateMark) -> None:
        with self._lock:
            self._run(mark)

    def is_passed(self, mark: LateMark) -> bool:
        with self._lock:
            return mark.lane == "compute" or self._done[mark.lane] >= mark.count

    def seconds(self, first: LateMark, last: LateMark) -> float:
        return last.at_s - first.at_s

    def copy(self, into: Tensor, source: Tensor) -> None:
        assert self.is_pinned(into) or self.is_pinned(source), "the device cannot copy it by itself"
        lane = self._lane
        if lane == "compute":
            into.copy_(source)
            return
        with self._lock:
            if lane == "load":
                # What computed before may use the memory still.
                allocated = self._allocated.get(into.untyped_storage().data_ptr())
                assert allocated is None or self._waited["load"] >= allocated
            else:
                assert self._waited["store"] >= self.last_step, "the last writer may not be done"
            self.copied[lane] += into.nbytes
            device = into if lane == "load" else source
            self._queue(lane, device.untyped_storage().data_ptr(), partial(into.copy_, source))

    def launch(self, work: Callable[[], None]) -> None:
        lane = self._lane
        if lane == "compute":
            work()
            return
        with self._lock:
            self._queue(lane, 0, work)

    def empty(self, num_bytes: int) -> Tensor:
        memory = torch.full((num_bytes,), 0xFF, dtype=torch.uint8)
        with self._lock:
            if self._lane == "compute":
                self.tick += 1
                self._allocated[memory.data_ptr()] = self.tick
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
        """Whether a copy that has not run yet touches a tensor's memory."""
        address = tensor.untyped_storage().data_ptr()
        with self._lock:
            return any(address == touched for queue in self._queues.values() for touched, _ in queue)

    def _queue(self, lane: Lane, address: int, work: Callable[[], object]) -> None:
        self._queues[lane].append((address, work))
        self._given[lane] += 1

    def _run(self, mark: LateMark) -> None:
        while mark.lane != "compute" and self._done[mark.lane] < mark.count:
            _, work = self._queues[mark.lane].popleft()
            self._done[mark.lane] += 1
            work()
