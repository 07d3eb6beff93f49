"""Pinning in pieces: memory that there is already becomes readable by devices, or stays as it is.

A driver may refuse to pin memory: a limit of locked memory, a map of a file that is read-only, too little memory. One large piece is refused
more often than small ones, so memory is pinned piece by piece. If a piece is refused, all earlier ones are unpinned again.

A driver pins no range twice. So those who pin the same range share one registration, which ends with the last of them.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator
from threading import RLock
from weakref import finalize

from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.errors import InputError
from sagann.runtime.device.cuda_devices import CudaDevices

PIECE_BYTES = 1 << 30
"Bytes of a piece; the first and the last one may be smaller."


class PinningError(InputError):
    """Memory that a driver does not pin; none of it is pinned any more."""


class _Registration:
    """A range of memory that a driver has pinned, as long as it has holders."""

    def __init__(self, memory: Tensor, addresses: list[int], driver: CudaDevices) -> None:
        # The memory stays where it is until it is unpinned.
        self.memory, self.addresses, self.driver = memory, addresses, driver
        self.holders: list[None] = []
        "An entry for each holder. The lock does not keep out a finalizer that garbage collection runs on this thread, but a list changes at once."


_REGISTRATIONS: dict[tuple[object, int, int], _Registration] = {}
"Registrations in use, by the driver's scope, and by address and bytes of the memory."
_LOCK = RLock()
"Held while memory is pinned or unpinned. A finalizer may need it on the thread that holds it."


class Pinned:
    """Memory that is pinned until nobody needs this object. Made by :func:`pin_in_pieces`."""

    def __init__(self, key: tuple[object, int, int], registration: _Registration) -> None:
        # A driver that ends with the process unpins by itself, and may be gone first.
        finalize(self, _leave, key, registration).atexit = False


def pin_in_pieces(memory: Tensor, driver: CudaDevices, *, piece_bytes: int = PIECE_BYTES) -> Pinned:
    """Pin memory, uint8 [bytes] on the processor, in place, piece by piece; memory that is pinned already stays so for its last holder.

    Raises:
        PinningError: the driver refuses a piece, or a piece that it accepted is not pinned. Earlier pieces are unpinned again.
    """
    assert piece_bytes % mmap.PAGESIZE == 0
    key = driver.scope, memory.data_ptr(), len(memory)
    with _LOCK:
        registration = _REGISTRATIONS.get(key)
        if registration is not None:
            registration.holders.append(None)
        # Garbage collection on this thread may have ended the registration before it had the new holder.
        if registration is None or _REGISTRATIONS.get(key) is not registration:
            registration = _Registration(memory, _pin(memory, driver, piece_bytes), driver)
            registration.holders.append(None)
            _REGISTRATIONS[key] = registration
    return Pinned(key, registration)


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


def _leave(key: tuple[object, int, int], registration: _Registration) -> None:
    """End one hold of a registration, and with the last one the registration."""
    memory, addresses, driver = registration.memory, registration.addresses, registration.driver
    with _LOCK:
        registration.holders.pop()
        if registration.holders or _REGISTRATIONS.pop(key, None) is None:
            return
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
