"""Streams: the queues of a device, and what one of them waits for in another.

Everything that streaming asks of a device is here; the rest is ordinary Python, and is tested with queues that have no
device. There is no wait of the whole device, and none of the host but for :meth:`Streams.finish`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.plan.timeline import Lane


class Mark(Protocol):
    """A point in a lane's queue: all that was queued before it."""


class Streams(Protocol):
    """A lane each for computing, loads and stores. What is queued in a lane runs in order; lanes run beside one another.

    Computing's lane is the calling thread's current one, so that PyTorch's own work is in it.
    """

    device: torch.device
    "Device of the streams."

    def on(self, lane: Lane) -> AbstractContextManager[None]:
        """Inside the ``with`` block, what this thread queues or allocates is the lane's."""
        ...

    def mark(self, lane: Lane) -> Mark:
        """What the lane has been given so far."""
        ...

    def wait(self, lane: Lane, mark: Mark) -> None:
        """Have what the lane is given from now on run after the mark."""
        ...

    def finish(self, mark: Mark) -> None:
        """Have the host wait until the mark is passed."""
        ...

    def seconds(self, first: Mark, last: Mark) -> float:
        """Between two marks that are passed."""
        ...

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Queue a copy; one of the tensors is the device's, the other pinned."""
        ...

    def empty(self, num_bytes: int) -> Tensor:
        """Uninitialised memory of the device: uint8 [num_bytes]; it is used again in the order of this thread's lane."""
        ...

    def hand_over(self, tensor: Tensor) -> None:
        """Have memory that another lane has allocated not be used again before this thread's lane is done with it."""
        ...

    def pinned(self, num_bytes: int) -> Tensor:
        """Uninitialised memory of the host that the device can copy by itself: uint8 [num_bytes].

        Raises:
            InputError: the system does not give it.
        """
        ...

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in such memory."""
        ...

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies on the device."""
        ...

    def release(self) -> None:
        """Give back the device's memory that is kept for later. Everybody waits: not within an epoch."""
        ...


class CudaStreams:
    """Streams of a CUDA device.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies: dict[Lane, torch.cuda.Stream] = {
            "load": torch.cuda.Stream(device),
            "store": torch.cuda.Stream(device),
        }

    def _stream(self, lane: Lane) -> torch.cuda.Stream:
        return self._copies.get(lane) or torch.cuda.current_stream(self.device)

    @contextmanager
    def on(self, lane: Lane) -> Iterator[None]:
        """Inside the ``with`` block, what this thread queues or allocates is the lane's."""
        with torch.cuda.stream(self._stream(lane)):
            yield

    def mark(self, lane: Lane) -> Mark:
        """What the lane has been given so far."""
        # Timed ones cost a little more on the device; no more than some are made for each copy.
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream(lane))
        return event

    def wait(self, lane: Lane, mark: Mark) -> None:
        """Have what the lane is given from now on run after the mark."""
        self._stream(lane).wait_event(_event(mark))

    def finish(self, mark: Mark) -> None:
        """Have the host wait until the mark is passed."""
        _event(mark).synchronize()

    def seconds(self, first: Mark, last: Mark) -> float:
        """Between two marks that are passed."""
        return float(_event(first).elapsed_time(_event(last))) / 1e3

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Queue a copy."""
        into.copy_(source, non_blocking=True)

    def empty(self, num_bytes: int) -> Tensor:
        """Uninitialised memory of the device."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def hand_over(self, tensor: Tensor) -> None:
        """Have memory that another lane has allocated not be used again before this thread's lane is done with it."""
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def pinned(self, num_bytes: int) -> Tensor:
        """Uninitialised memory of the host that the device can copy by itself.

        Raises:
            InputError: the system does not give it.
        """
        # PyTorch's own rounds up to powers of two: of large blocks up to half would be wasted.
        memory = mmap.mmap(-1, max(num_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        array = np.frombuffer(memory, np.uint8, num_bytes)
        address, cudart = array.ctypes.data, torch.cuda.cudart()
        with torch.cuda.device(self.device):
            code = int(cudart.cudaHostRegister(address, len(memory), 0))
        if code:
            # CUDA keeps its error for the next operator, which has nothing to do with it.
            with suppress(RuntimeError):
                torch.zeros(1, device=self.device)
            raise InputError(
                "host memory cannot be pinned",
                value=f"{num_bytes} bytes, CUDA's error {code}",
                where=f"streaming to {self.device}",
                fix="Spill to a disk (spill=, --spill), raise the limit of locked memory (ulimit -l), or free memory.",
            )
        finalize(array, _unpin, memory, address).atexit = False
        return torch.from_numpy(array)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in such memory."""
        return tensor.is_pinned()

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies on the device."""
        return tensor.device == self.device

    def release(self) -> None:
        """Give back the device's memory that is kept for later."""
        with torch.cuda.device(self.device):
            torch.cuda.empty_cache()


def _unpin(memory: mmap.mmap, address: int) -> None:
    """Unregister memory; it is kept until then, and given back to the system after that."""
    torch.cuda.cudart().cudaHostUnregister(address)


def _event(mark: Any) -> torch.cuda.Event:
    event: torch.cuda.Event = mark
    return event
