"""HostDevices: the processor in the place of a CUDA device, to try a benchmark out: its memory is the host's, all of which counts as pinned."""

from __future__ import annotations

import torch
from torch import Tensor

from sagann.free_space import Room, host_room


class HostDevices:
    """One device that is the processor."""

    def __len__(self) -> int:
        return 1

    def device(self, number: int) -> torch.device:
        """The processor."""
        return torch.device("cpu")

    def room(self, number: int) -> Room:
        """The host's memory."""
        return host_room()

    def linked(self, first: int, second: int) -> bool:
        """There is no second device."""
        return False

    def empty(self, number: int, num_bytes: int) -> Tensor:
        """Uninitialised memory: uint8 [num_bytes]."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def finish(self) -> None:
        """Nothing is under way."""

    @property
    def scope(self) -> object:
        """Nobody else pins for these devices."""
        return self

    def register(self, address: int, num_bytes: int) -> int:
        """Success: the processor reads all of its memory."""
        return 0

    def unregister(self, address: int) -> int:
        """Success."""
        return 0

    def is_pinned(self, memory: Tensor) -> bool:
        """Yes: the processor reads all of its memory."""
        return True
