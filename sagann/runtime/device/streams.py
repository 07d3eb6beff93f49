"""Streams: the queues of a CUDA device, and what waits for what in them.

This module has all that streaming asks of CUDA; the other modules are ordinary Python, and tests run them with queues that
need no device. Only :meth:`Streams.finish` makes the host wait, and only :meth:`Streams.release` waits for the whole device.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Condition
from typing import Literal
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.kernels.memory import allocated_bytes
from sagann.plan.steps import UNLIMITED
from sagann.plan.timeline import LANES, Lane

Mark = torch.cuda.Event
"A point in a lane's queue, which lanes of every device can wait for. The mark is passed when all work that was queued before it is done."
Queue = Lane | Literal["receive"]
"A lane of a device: what comes from other devices has one of its own, beside ``exchange`` for what goes to them."
_PORTABLE = 1
"cudaHostRegisterPortable: every device copies the memory by itself."


class Streams:
    """One lane for computing, one each for loads, for stores, and for copies to and from other devices. A lane runs its work in order; lanes run
    side by side.

    The lane that computes is the calling thread's current stream, so it also runs PyTorch's own work.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        lanes: tuple[Queue, ...] = ("load", "store", "exchange", "receive")
        self._copies: dict[Queue, torch.cuda.Stream] = {lane: torch.cuda.Stream(device) for lane in lanes}

    def _stream(self, lane: Queue) -> torch.cuda.Stream:
        return self._copies.get(lane) or torch.cuda.current_stream(self.device)

    @contextmanager
    def on(self, lane: Queue) -> Iterator[None]:
        """Inside the ``with`` block, this thread queues work and allocates memory in the lane of this device, which is the current one."""
        with torch.cuda.stream(self._stream(lane)):
            yield

    def mark(self, lane: Queue) -> Mark:
        """The point after all work that the lane has so far."""
        # A timed event costs the device little more than an untimed one, and each copy makes only a few. What is recorded has no times.
        event = Mark(enable_timing=not torch.cuda.is_current_stream_capturing())
        event.record(self._stream(lane))
        return event

    def wait(self, lane: Queue, mark: Mark) -> None:
        """Run work that the lane is given from now on after the mark."""
        self._stream(lane).wait_event(mark)

    def finish(self, mark: Mark) -> None:
        """Make the host wait until the mark is passed."""
        mark.synchronize()

    def finish_copies(self) -> None:
        """Make the host wait until all copies that were queued are done."""
        for lane in self._copies:
            self.finish(self.mark(lane))

    def is_passed(self, mark: Mark) -> bool:
        """Whether the mark is passed already."""
        return mark.query()

    def seconds(self, first: Mark, last: Mark) -> float:
        """Seconds between two marks that are passed."""
        return float(first.elapsed_time(last)) / 1e3

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Queue a copy in this thread's lane. One of the tensors lies on the device, the other in pinned memory or on another device, in whose lane
        ``receive`` this thread is.
        """
        into.copy_(source, non_blocking=True)

    def launch(self, work: Callable[[], None]) -> None:
        """Queue work that launches kernels, in this thread's lane."""
        work()

    def empty(self, num_bytes: int) -> Tensor:
        """Uninitialised memory of the device: uint8 [num_bytes]. Memory is reused in the order of this thread's lane."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def hand_over(self, tensor: Tensor) -> None:
        """Reuse memory that another lane allocated only after this thread's lane is done with the memory."""
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def pinned(self, num_bytes: int) -> Tensor:
        """Uninitialised memory of the host that the device copies by itself: uint8 [num_bytes].

        Raises:
            InputError: the system does not give the memory.
        """
        # PyTorch's own allocator rounds up to powers of two, which wastes up to half of a large block.
        memory = mmap.mmap(-1, max(num_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        array = np.frombuffer(memory, np.uint8, num_bytes)
        address, cudart = array.ctypes.data, torch.cuda.cudart()
        with torch.cuda.device(self.device):
            code = int(cudart.cudaHostRegister(address, len(memory), _PORTABLE))
        if code:
            # CUDA reports its error again at the next operator, which has nothing to do with the error.
            with suppress(RuntimeError):
                torch.zeros(1, device=self.device)
            raise InputError(
                f"host memory cannot be pinned: {num_bytes} bytes, CUDA's error {code} (in streaming to "
                f"{self.device})",
                hint="Spill to a disk (spill=, --spill), raise the limit of locked memory (ulimit -l), or free memory.",
            )
        finalize(array, _unpin, memory, address).atexit = False
        return torch.from_numpy(array)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in pinned memory."""
        return tensor.is_pinned()

    def release(self) -> None:
        """Give back the device's memory that PyTorch keeps for later. All lanes wait, so not within an epoch."""
        with torch.cuda.device(self.device):
            torch.cuda.empty_cache()


def _unpin(memory: mmap.mmap, address: int) -> None:
    # The argument keeps the memory mapped until it is unregistered.
    torch.cuda.cudart().cudaHostUnregister(address)


_PAGE_BYTES = 4096


class PinnedPool:
    """Pieces of pinned memory by size, from any thread. Devices of the lanes ``beside`` copy from and to them as well.

    A piece is returned with a mark, and is given out again only after the mark is passed. A pool with a limit is a ring: a thread that
    needs more memory waits for the piece that was returned first. A single piece may be larger than the limit. A free piece is given out
    for as little as its size over ``most_times``; where pieces differ in size, few are pinned so.
    """

    def __init__(
        self,
        streams: Streams,
        most_bytes: int = UNLIMITED,
        *,
        most_times: float = 1.0,
        beside: Sequence[Streams] = (),
    ) -> None:
        self._streams, self._beside = streams, beside
        self._most_bytes, self._most_times = most_bytes, most_times
        self._changed = Condition()
        self._free: OrderedDict[int, Tensor] = OrderedDict()
        "Free pieces by address, the oldest first."
        self._returned: deque[tuple[Tensor, Mark]] = deque()
        self._held_bytes = 0
        "Bytes of all pieces: given out, returned and free."
        self._num_given = 0

    def take(self, num_bytes: int) -> Tensor:
        """A piece of at least ``num_bytes``, uint8. Waits until the limit allows one."""
        size = -(-allocated_bytes(max(num_bytes, 1)) // _PAGE_BYTES) * _PAGE_BYTES
        with self._changed:
            while self._returned and self._streams.is_passed(self._returned[0][1]):
                self._free_returned()
            while (piece := self._reused(size)) is None and not self._has_room(size):
                self._wait()
            if piece is None:
                piece = self._streams.pinned(size)
                self._held_bytes += size
            self._num_given += 1
            return piece

    def give(self, piece: Tensor, mark: Mark | None = None) -> None:
        """Return a piece, with the mark after the last copy that touches it; None where no copy is under way."""
        with self._changed:
            self._num_given -= 1
            if mark is None:
                self._free[piece.data_ptr()] = piece
            else:
                self._returned.append((piece, mark))
            self._changed.notify_all()

    def bring(self, array: Tensor) -> Tensor:
        """Queue the copy of an array of the host to the device, in this thread's stream; the array is free at once."""
        piece, memory = self.take(array.nbytes), self._streams.empty(array.nbytes)
        piece[: array.nbytes].view(array.dtype).view(array.shape).copy_(array)
        self._streams.copy(memory, piece[: array.nbytes])
        self.give(piece, self._streams.mark("compute"))
        return memory.view(array.dtype).view(array.shape)

    def read(self, array: Tensor) -> Tensor:
        """An array of the device, on the host. Waits for this thread's stream, and for nothing else of the device."""
        piece = self.take(array.nbytes)
        landing = piece[: array.nbytes].view(array.dtype).view(array.shape)
        self._streams.copy(landing, array)
        self._streams.finish(self._streams.mark("compute"))
        found = landing.clone()
        self.give(piece)
        return found

    def reclaim(self, pieces: Sequence[Tensor]) -> None:
        """Take pieces back, once all lanes have done what they were given."""
        for streams in (self._streams, *self._beside) if pieces else ():
            for lane in LANES:
                streams.finish(streams.mark(lane))
        for piece in pieces:
            self.give(piece)

    def _reused(self, size: int) -> Tensor | None:
        # The piece that was used last comes first: it may still be in the processor's cache.
        fitting = [
            address for address in reversed(self._free) if 1 <= len(self._free[address]) / size <= self._most_times
        ]
        return self._free.pop(min(fitting, key=lambda each: len(self._free[each]))) if fitting else None

    def _has_room(self, size: int) -> bool:
        while self._held_bytes + size > self._most_bytes and self._free:
            _, oldest = self._free.popitem(last=False)
            self._held_bytes -= len(oldest)
        return self._held_bytes + size <= self._most_bytes or not self._held_bytes

    def _wait(self) -> None:
        """Wait for the piece that was returned first, or else until a piece is returned."""
        if self._returned:
            # If this fails, the piece stays in the queue, and the next caller gets the same error.
            self._streams.finish(self._returned[0][1])
            self._free_returned()
        else:
            assert self._num_given, "a held piece is given out, returned or free"
            self._changed.wait()

    def _free_returned(self) -> None:
        piece, _ = self._returned.popleft()
        self._free[piece.data_ptr()] = piece
