"""CUDA's streams, events and graphs for several simulated devices. To be imported before the modules of sagann that use them, in a program of its own.

Graphs are tapes of :mod:`tests.simulated_device`. What is launched, and copies between devices and from and to pinned memory, are queued: they run
when the host waits for them, in a random order that streams and events allow. Each carries a vector clock, by which two of them that touch the same
memory, one of them writing, must be ordered. Refused is what CUDA and PyTorch refuse: two captures at a time, work of another device in a capture, copies
between devices in it, memory of another device unless it is relaxed, and to wait for an event of another graph, or, in a graph, for one that is not
recorded there.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests import simulated_device
from tests.simulated_device import (
    _TAPES,
    COPIES,
    COUNTED,
    FAULTS,
    FILLED,
    SIMULATED,
    Mark,
    NotRecordableError,
    SimulatedTensor,
    Tape,
    _is_pinned,
    _values,
)

_NUMBERS = count()
Touched = dict[int, list[tuple[int, int, bool]]]
"By storage: ranges of bytes, and whether they are written."


class _Unit(NamedTuple):
    """Work of a stream, and how much of each stream ends before it."""

    stream: str
    number: int
    before: Counter[str]
    work: Callable[[], object]


class World:
    """What the devices have been given."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.pending: list[_Unit] = []
        self.done: Counter[str] = Counter()
        self.reset()

    def reset(self) -> None:
        """Forget all but what must still run."""
        self.history: defaultdict[int, list[tuple[_Unit, int, int, bool]]] = defaultdict(list)
        self.pools: defaultdict[int, list[Tensor]] = defaultdict(list)
        self.peaks: Counter[int] = Counter()
        self.numbers = random.Random(3)
        self.lost: Callable[[Stream, Event], bool] = lambda stream, event: False
        "Whether a stream forgets to wait for an event."

    def drop(self) -> None:
        """Forget what has been given, as if it had run."""
        for unit in self.pending:
            self.done[unit.stream] = unit.number
        self.pending.clear()
        self.history.clear()

    def give(self, stream: Stream, work: Callable[[], object], touched: Touched) -> None:
        """Queue work of a stream, which must not race with other work."""
        with self._lock:
            self._give(stream, work, touched)

    def _give(self, stream: Stream, work: Callable[[], object], touched: Touched) -> None:
        before = stream.clock.copy()
        unit = _Unit(stream.name, before[stream.name] + 1, before, work)
        for storage, ranges in touched.items():
            known = [each for each in self.history[storage] if self.done[each[0].stream] < each[0].number]
            for other, first, last, wrote in known:
                for begin, end, writes in ranges:
                    assert (
                        not (wrote or writes)
                        or end <= first
                        or last <= begin
                        or before[other.stream] >= other.number
                    ), f"a race between {other.stream} and {unit.stream}"
            self.history[storage] = known + [(unit, *each) for each in ranges]
        stream.clock[stream.name] = unit.number
        self.pending.append(unit)

    def run(self, needed: Counter[str] | None = None) -> None:
        """Run what the host waits for, or all."""
        with self._lock:
            self._run(needed)

    def _run(self, needed: Counter[str] | None) -> None:
        wanted, most = list(self.pending), None if needed is None else needed.copy()
        if most is not None:
            wanted = []
            # Later work waits for earlier work alone.
            for unit in reversed(self.pending):
                if unit.number <= most[unit.stream]:
                    most |= unit.before
                    wanted.append(unit)
        while wanted:
            ready = [each for each in wanted if all(self.done[at] >= number for at, number in each.before.items())]
            unit = self.numbers.choice(ready)
            wanted.remove(unit)
            self.pending.remove(unit)
            self.done[unit.stream] = unit.number
            unit.work()


WORLD = World()


class Stream:
    """A stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.name, self.clock = device, f"stream {next(_NUMBERS)} of {device}", Counter[str]()

    def lane(self) -> str | None:
        """Its lane in the graph that is captured; None outside of it."""
        if not _TAPES:
            return None
        tape: Any = _TAPES[-1]
        return "compute" if tape.main is self else self.name if self.name in tape._lanes else None

    def wait_event(self, event: Event) -> None:
        if WORLD.lost(self, event):
            return
        lane = self.lane()
        if event.mark is not None:
            if not _TAPES or event.mark.tape is not _TAPES[-1]:
                raise NotRecordableError("a wait for an event of another graph")
            _TAPES[-1].wait(lane or self.name, event.mark)
        elif lane is not None and event.is_recorded:
            raise NotRecordableError("a wait for what is not recorded")
        else:
            self.clock |= event.clock

    def wait_stream(self, other: Stream) -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)


class Event:
    """A point in a stream, or in a lane of a graph."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.mark: Mark | None = None
        self.clock, self.is_recorded = Counter[str](), False

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        lane = stream.lane()
        self.mark = None if lane is None else _TAPES[-1].mark(lane)
        self.clock, self.is_recorded = stream.clock.copy(), True

    def synchronize(self) -> None:
        if _TAPES:
            raise NotRecordableError("cudaEventSynchronize")
        WORLD.run(self.clock)

    def query(self) -> bool:
        if _TAPES:
            raise NotRecordableError("cudaEventQuery")
        return all(WORLD.done[at] >= number for at, number in self.clock.items())

    def elapsed_time(self, other: Event) -> float:
        return 0.0


class CUDAGraph:
    """Work of one device that was captured."""

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        if "no graphs" in FAULTS:
            raise RuntimeError("CUDA error: operation not supported")
        assert not _TAPES, "PyTorch captures one graph at a time"
        self.thread = None if capture_error_mode == "relaxed" else threading.get_ident()
        WORLD.run()
        index = current_stream().device.index
        self.tape: Any = Tape(MOST_BYTES[-1], index, WORLD.pools[index])
        self.tape.main = current_stream()
        self.tape.is_relaxed = capture_error_mode == "relaxed"
        _TAPES.append(self.tape)

    def capture_end(self) -> None:
        try:
            assert current_stream() is self.tape.main, "a capture ends on the stream that it began on"
            assert self.thread in (None, threading.get_ident()), "a capture that is not relaxed ends in its thread"
            if not isinstance(sys.exception(), AssertionError):
                self.tape.end()
        finally:
            _TAPES.pop()
        WORLD.peaks[self.tape.index] = max(WORLD.peaks[self.tape.index], self.tape.peak_bytes)
        found: Touched = {}
        for storage, touched in self.tape.touched.items():
            found[storage] = list({(begin, end, writes) for _, begin, end, writes in touched})
        self.touched = found

    def replay(self) -> None:
        assert not _TAPES
        COUNTED["launches"] += 1
        WORLD.give(_CURRENT[self.tape.main.device], self.tape.launch, self.touched)

    def pool(self) -> object:
        return self.tape.index


MOST_BYTES = [float("inf")]
_DEVICE: list[torch.device] = []
"Devices that were made the current one; the first device before."
_CURRENT: dict[torch.device, Stream] = {}
"By device, the current stream: of PyTorch's threads, of which one works at a time."
_OWN = threading.local()
"The same of threads that read and write for a device."


def current_stream(device: torch.device | None = None) -> Stream:
    """The current stream of a device."""
    current, devices = _here()
    device = device or (devices[-1] if devices else torch.device(SIMULATED, 0))
    if device not in current:
        current[device] = Stream(device)
    return current[device]


def _here() -> tuple[dict[torch.device, Stream], list[torch.device]]:
    """By device, this thread's current stream, and devices that it made the current one."""
    if threading.current_thread().name.startswith("sagann-"):
        own: Any = _OWN
        if not hasattr(own, "here"):
            own.here = {}, []
        return own.here
    return _CURRENT, _DEVICE


@contextmanager
def use(stream: Stream) -> Iterator[None]:
    """Make a stream, and its device, the current ones."""
    before, (current, devices) = current_stream(stream.device), _here()
    current[stream.device] = stream
    devices.append(stream.device)
    try:
        yield
    finally:
        devices.pop()
        current[stream.device] = before


def _lane() -> str:
    found = current_stream(torch.device(SIMULATED, _TAPES[-1].index)).lane() if _TAPES else "compute"
    assert found is not None, "the current stream is not captured"
    return found


def _range(tensor: Tensor, writes: bool) -> Touched:
    values = _values(tensor)
    first = values.storage_offset() * values.itemsize
    spans = ((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    return {values.untyped_storage().data_ptr(): [(first, first + (1 + sum(spans)) * values.itemsize, writes)]}


def _copied(into: Tensor, source: Tensor, non_blocking: bool = False) -> bool:
    """Queue a copy from a device to another, or from or to pinned memory."""
    devices = [each.device for each in (into, source) if isinstance(each, SimulatedTensor)]
    is_between = len(devices) == 2 and devices[0] != devices[1]
    on_host = [each for each in (into, source) if not isinstance(each, SimulatedTensor)]
    if is_between and _TAPES:
        raise NotRecordableError("a copy between devices")
    if _TAPES or not into.numel() or not (is_between or (on_host and on_host[0].ndim and _is_pinned(on_host[0]))):
        return False
    stream, other = current_stream(devices[-1]), current_stream(devices[0])
    # PyTorch has both streams wait for each other.
    stream.clock |= other.clock
    COUNTED["peer copies" if is_between else "late reads" if into is on_host[0] else "copies"] += 1
    if is_between:
        assert stream is not other
        FILLED.add(_values(into).untyped_storage().data_ptr())
    to, of = _values(into), _values(source)
    WORLD.give(stream, lambda: to.copy_(of), _range(into, True) | _range(source, False))
    other.clock |= stream.clock
    return True


def _allocated(made: Tensor, device: torch.device | None = None) -> Tensor:
    tape: Any = _TAPES[-1] if _TAPES else None
    if tape is not None and not tape.is_relaxed and simulated_device._index_of(device) != tape.index:
        raise NotRecordableError("cudaMalloc on another device")
    return _ALLOCATED(made, device)


_ALLOCATED = simulated_device._allocated


def lent(tensor: Tensor) -> Tensor:
    """A tensor in the same memory, which it does not keep. The recording that has made the memory does."""
    values: Tensor = _values(tensor)
    storage = values.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), torch.device("cpu"), storage.nbytes()
    )
    form = values.storage_offset(), values.shape, values.stride()
    return SimulatedTensor(torch.empty(0, dtype=values.dtype).set_(storage, *form), tensor.device.index)


def _install() -> None:
    assert "sagann.runtime.device.streams" not in sys.modules
    here: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "stream": use,
        "current_stream": current_stream,
        "is_current_stream_capturing": lambda: current_stream().lane() is not None,
        "synchronize": lambda device: WORLD.run(),
        "empty_cache": lambda: None,
        "memory_reserved": lambda device: WORLD.peaks[device.index],
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: None,
    }
    for name, value in here.items():
        setattr(torch.cuda, name, value)
    simulated_device._lane = _lane
    simulated_device._allocated = _allocated
    simulated_device.current_index = lambda: current_stream().device.index
    simulated_device._run_late = lambda count=None: WORLD.run()
    COPIES.append(_copied)


_install()
