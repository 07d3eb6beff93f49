"""CudaDevices: what a feature store asks of several CUDA devices: memory, links between them, and pinned memory of the host.

No call here has been measured on a device. Tests run the store with devices that are simulated.

Memory that there is already becomes readable by devices, or stays as it is. A driver may refuse to pin memory: a limit of locked memory, a
map of a file that is read-only, too little memory. One large piece is refused more often than small ones, so memory is pinned piece by
piece. If a piece is refused, all earlier ones are unpinned again. A driver pins no range twice, so those who pin the same range share it.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from threading import RLock
from weakref import WeakValueDictionary, finalize

import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.errors import InputError, MissingDependencyError
from sagann.free_space import Room

PIECE_BYTES = 1 << 30
"Bytes of a piece; the first and the last one may be smaller."


class PinningError(InputError):
    """Memory that a driver does not pin; none of it is pinned any more."""


_LOCK = RLock()
"Held while memory is pinned or unpinned. A finalizer may need it on the thread that holds it."


class Pinned:
    """Memory that is pinned until nobody needs this object. Made by :func:`pin_in_pieces`."""

    def __init__(self, memory: Tensor, addresses: list[int], driver: CudaDevices) -> None:
        # The memory stays where it is until it is unpinned. A driver that ends with the process unpins by itself, and may be gone first.
        finalize(self, _unpin, memory, addresses, driver).atexit = False


_PINNED = WeakValueDictionary[tuple[object, int, int], Pinned]()
"What is pinned, by the driver's scope, and by address and bytes of the memory."


def pin_in_pieces(memory: Tensor, driver: CudaDevices, *, piece_bytes: int = PIECE_BYTES) -> Pinned:
    """Pin memory, uint8 [bytes] on the processor, in place, piece by piece. Who pins the same memory gets the same object.

    Raises:
        PinningError: the driver refuses a piece, or a piece that it accepted is not pinned. Earlier pieces are unpinned again.
    """
    assert piece_bytes % mmap.PAGESIZE == 0
    key = driver.scope, memory.data_ptr(), len(memory)
    with _LOCK:
        found = _PINNED.get(key)
        if found is None:
            found = _PINNED[key] = Pinned(memory, _pin(memory, driver, piece_bytes), driver)
        return found


def _pin(memory: Tensor, driver: CudaDevices, piece_bytes: int) -> list[int]:
    """Pin all pieces; their addresses."""
    first, addresses = memory.data_ptr(), list[int]()
    pieces = list(_pieces(first, len(memory), piece_bytes))
    for number, (begin, end) in enumerate(pieces):
        code = driver.register(begin, end - begin)
        refused = f"the driver's error {code}" if code else ""
        if not code:
            addresses.append(begin)
            piece = memory[begin - first : end - first]
            if not (driver.is_pinned(piece) and driver.is_pinned(piece[-1:])):
                refused = "the driver reports success, but the memory is not pinned"
        if refused:
            codes = _unregister(addresses, driver)
            left = f"; unpinning earlier pieces failed with errors {', '.join(map(str, codes))}" if codes else ""
            raise PinningError(
                f"host memory cannot be pinned: piece {number + 1} of {len(pieces)}, "
                f"{format_bytes(end - begin)} of {format_bytes(len(memory))}: {refused}{left} (in pinning in "
                "pieces)",
                hint="Raise the limit of locked memory (ulimit -l), or free memory.",
            )
    return addresses


def _pieces(first: int, num_bytes: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of addresses. They meet at the beginnings of pages: a page cannot be pinned twice."""
    begin, last = first, first + num_bytes
    while begin < last:
        end = min(last, (begin + piece_bytes) // mmap.PAGESIZE * mmap.PAGESIZE)
        yield begin, end
        begin = end


def _unregister(addresses: list[int], driver: CudaDevices) -> list[int]:
    """Unpin pieces, the last one first; the codes of those that were refused."""
    codes = [driver.unregister(address) for address in reversed(addresses)]
    return [code for code in codes if code]


def _unpin(memory: Tensor, addresses: list[int], driver: CudaDevices) -> None:
    with _LOCK:
        if addresses:
            # Batches that a loop has left behind may be under way.
            driver.finish()
        codes = _unregister(addresses, driver)
    if codes:
        warnings.warn(
            f"{len(codes)} of {len(addresses)} pieces of {format_bytes(len(memory))} of host memory stay pinned: the driver's "
            f"errors {', '.join(map(str, codes))}. Their memory is not given back before the process ends.",
            RuntimeWarning,
            stacklevel=2,
        )


# cudaHostRegisterPortable | cudaHostRegisterMapped: every device of the process reads the memory, at its address on the host.
_READABLE_BY_ALL = 1 | 2


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
