"""Streams: the queues of a CUDA device, and what waits for what in them.

This module has all that streaming asks of CUDA; the other modules are ordinary Python, and tests run them with queues that
need no device. Only :meth:`Streams.finish` makes the host wait, and only :meth:`Streams.release` waits for the whole device.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.plan.timeline import Lane

Mark = torch.cuda.Event
"A point in a lane's queue. The mark is passed when all work that was queued before it is done."


class Streams:
    """One lane for computing, one for loads, one for stores. A lane runs its work in order; lanes run side by side.

    The lane that computes is the calling thread's current stream, so it also runs PyTorch's own work.
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
        """Inside the ``with`` block, this thread queues work and allocates memory in the lane."""
        with torch.cuda.stream(self._stream(lane)):
            yield

    def mark(self, lane: Lane) -> Mark:
        """The point after all work that the lane has so far."""
        # A timed event costs the device little more than an untimed one, and each copy makes only a few.
        event = Mark(enable_timing=True)
        event.record(self._stream(lane))
        return event

    def wait(self, lane: Lane, mark: Mark) -> None:
        """Run work that the lane is given from now on after the mark."""
        self._stream(lane).wait_event(mark)

    def finish(self, mark: Mark) -> None:
        """Make the host wait until the mark is passed."""
        mark.synchronize()

    def is_passed(self, mark: Mark) -> bool:
        """Whether the mark is passed already."""
        return mark.query()

    def seconds(self, first: Mark, last: Mark) -> float:
        """Seconds between two marks that are passed."""
        return float(first.elapsed_time(last)) / 1e3

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Queue a copy. One of the tensors lies on the device, the other in pinned memory."""
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
            code = int(cudart.cudaHostRegister(address, len(memory), 0))
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
