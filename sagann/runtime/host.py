"""Host: where blocks lie that are not in the device's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from sagann.kernels.memory import empty
from sagann.plan.steps import Block


class Host(Protocol):
    """Keeps copies of blocks. One thread puts, another gets; never the same block at once."""

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors."""
        ...

    def get(self, block: Block) -> dict[str, Tensor]:
        """Copies of what was put last."""
        ...

    def close(self) -> None:
        """Forget all blocks."""
        ...


class RamHost:
    """Blocks in the process's memory."""

    def __init__(self) -> None:
        self._blocks: dict[Block, dict[str, Tensor]] = {}

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors."""
        self._blocks[block] = {name: copied(tensor) for name, tensor in tensors.items()}

    def get(self, block: Block) -> dict[str, Tensor]:
        """Copies of what was put last."""
        return {name: copied(tensor) for name, tensor in self._blocks[block].items()}

    def close(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()


def copied(tensor: Tensor) -> Tensor:
    """A contiguous copy, in pooled memory."""
    return empty(tensor.shape, tensor.dtype, tensor.device).copy_(tensor.detach())
