"""Devices that are simulated: a driver that pins, and refuses, and devices whose memory is the host's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sagann.free_space import Room
from sagann.runtime.device.cuda_devices import CudaDevices
from tests.runtime.device.late_streams import LateStreams


class SimulatedDevices(CudaDevices):
    """Devices without hardware. A range that overlaps a pinned one is refused, as by CUDA.

    Args:
        free_bytes: free memory of each device.
        links: pairs of devices that read each other's memory; None for all.
        refuse_at: number of the piece that is refused, from 0; None for none.
        unpin_code: code of every call that unpins.
        forgets: whether pinning reports success without doing it.
    """

    def __init__(
        self,
        free_bytes: Sequence[int] = (1 << 20,),
        *,
        links: Sequence[tuple[int, int]] | None = None,
        refuse_at: int | None = None,
        unpin_code: int = 0,
        forgets: bool = False,
    ) -> None:
        self.free_bytes, self.links, self.refuse_at = free_bytes, links, refuse_at
        self.unpin_code, self.forgets = unpin_code, forgets
        self._pools = {}
        self.pinned: dict[int, int] = {}
        "Bytes of pinned ranges by address."
        self.finished = 0
        self.registered: list[tuple[int, int]] = []
        "All ranges that were to be pinned."

    @property
    def scope(self) -> object:
        return self

    def __len__(self) -> int:
        return len(self.free_bytes)

    def room(self, number: int) -> Room:
        return Room(name=f"the memory of device {number}", free_bytes=self.free_bytes[number], total_bytes=1 << 30)

    def device(self, number: int) -> torch.device:
        return torch.device("cpu")

    def streams(self, number: int) -> LateStreams:
        return LateStreams()

    def empty(self, number: int, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), 0xFF, dtype=torch.uint8)

    def linked(self, first: int, second: int) -> bool:
        return self.links is None or (first, second) in self.links or (second, first) in self.links

    def register(self, address: int, num_bytes: int) -> int:
        self.registered.append((address, num_bytes))
        if len(self.registered) - 1 == self.refuse_at:
            return 2
        page = 4096
        for begin, size in self.pinned.items():
            if address // page <= (begin + size - 1) // page and begin // page <= (address + num_bytes - 1) // page:
                return 712
        if not self.forgets:
            self.pinned[address] = num_bytes
        return 0

    def unregister(self, address: int) -> int:
        if self.unpin_code:
            return self.unpin_code
        return 0 if self.forgets or self.pinned.pop(address, None) else 713

    def is_pinned(self, memory: Tensor) -> bool:
        return any(begin <= memory.data_ptr() < begin + size for begin, size in self.pinned.items())

    def finish(self) -> None:
        self.finished += 1
