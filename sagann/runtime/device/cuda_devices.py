"""CudaDevices: what a feature store asks of several CUDA devices: memory, links between them, and pinned memory of the host.

No call here has been measured on a device. Tests run the store with devices that are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec

import torch
from torch import Tensor

from sagann.errors import MissingDependencyError
from sagann.free_space import Room
from sagann.runtime.device.streams import PinnedPool, Streams

# cudaHostRegisterPortable | cudaHostRegisterMapped: every device of the process reads the memory, at its address on the host.
_READABLE_BY_ALL = 1 | 2
# Batches differ in size.
_MOST_TIMES = 2.0


class CudaDevices:
    """CUDA devices of this process.

    Args:
        devices: as PyTorch names them, each once; "cuda" is the current device.
        reserved_bytes: bytes of each device that other work of this process will take; they do not count as free.
    Raises:
        MissingDependencyError: Triton, which compiles kernels for the devices, is not installed.
    """

    def __init__(self, devices: Sequence[torch.device | str], *, reserved_bytes: int = 0) -> None:
        if find_spec("triton") is None:
            raise MissingDependencyError("triton", extra="cuda", feature="hot rows on a CUDA device")
        self._reserved_bytes = reserved_bytes
        self._pools: dict[int, PinnedPool] = {}
        self._devices = [
            torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
            for device in map(torch.device, devices)
        ]

    def __len__(self) -> int:
        return len(self._devices)

    def device(self, number: int) -> torch.device:
        """A device, by its number."""
        return self._devices[number]

    def room(self, number: int) -> Room:
        """The memory of a device. What PyTorch keeps for later is not counted as free."""
        device = self._devices[number]
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        free_bytes = max(0, free_bytes - self._reserved_bytes)
        return Room(name=f"the memory of {device}", total_bytes=total_bytes, free_bytes=free_bytes)

    def linked(self, first: int, second: int) -> bool:
        """Whether two devices read each other's memory. If so, kernels may do it from now on."""
        pair = self._devices[first], self._devices[second]
        if not (torch.cuda.can_device_access_peer(*pair) and torch.cuda.can_device_access_peer(*reversed(pair))):
            return False
        # PyTorch opens the memory of one device to another one at the first copy between them.
        for source, target in (pair, pair[::-1]):
            torch.zeros(1, device=source).to(target)
        return True

    def empty(self, number: int, num_bytes: int) -> Tensor:
        """Uninitialised memory of a device: uint8 [num_bytes]."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._devices[number])

    def pool(self, number: int) -> PinnedPool:
        """Pinned memory for small arrays on their way to a device, or from it, in the calling thread's stream."""
        if number not in self._pools:
            self._pools[number] = PinnedPool(self.streams(number), most_times=_MOST_TIMES)
        return self._pools[number]

    def streams(self, number: int) -> Streams:
        """The queues of a device."""
        return Streams(self._devices[number])

    @property
    def scope(self) -> object:
        """CUDA knows the pinned memory of the process, whichever devices it was pinned for."""
        return CudaDevices

    def finish(self) -> None:
        """Wait until all devices have done their work."""
        for device in self._devices:
            torch.cuda.synchronize(device)

    def register(self, address: int, num_bytes: int) -> int:
        """Pin memory of the host for all devices; CUDA's code, 0 for success."""
        with torch.cuda.device(self._devices[0]):
            code = int(torch.cuda.cudart().cudaHostRegister(address, num_bytes, _READABLE_BY_ALL))
        if code:
            # CUDA reports its error again at the next operator, which has nothing to do with the error.
            with suppress(RuntimeError):
                torch.zeros(1, device=self._devices[0])
        return code

    def unregister(self, address: int) -> int:
        """Unpin memory of the host; CUDA's code, 0 for success."""
        return int(torch.cuda.cudart().cudaHostUnregister(address))

    def is_pinned(self, memory: Tensor) -> bool:
        """Whether the first byte of a tensor is pinned."""
        return memory.is_pinned()
