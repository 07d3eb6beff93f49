"""Hosts: places for blocks that are not in the memory that computes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from sagann.graph.rows import flat_bytes, pick_rows
from sagann.kernels.memory import Pool, empty
from sagann.kernels.packed import Layout
from sagann.plan.steps import Block

HOST_POOL = Pool(most_times=1)
"Memory of blocks that lie in the process's memory, beyond any budget; the pool of results is kept within a budget."
# A thread that held the lock does not live on in a child.
os.register_at_fork(after_in_child=HOST_POOL.unlock)


class Host(Protocol):
    """Keeps copies of blocks. Threads may put and get at once, but not the same block."""

    gives_copies: bool
    "Whether ``get`` gives memory of its own; otherwise callers must not modify the memory that it gives."

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors."""

    def get(self, block: Block) -> dict[str, Tensor]:
        """The tensors of a block that were put last."""

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        """Copies of some rows, in ascending order, of each tensor of a block."""

    def room(self, block: Block, layout: Layout) -> dict[str, Tensor]:
        """Where the tensors of a block will lie, for others to write: memory, or pages of a file."""

    def view(self, block: Block) -> dict[str, Tensor]:
        """The tensors of a block where they lie, once they do. Callers must not modify them."""

    def close(self) -> None:
        """Forget all blocks."""


class RamHost:
    """Copies of blocks in the process's memory. All of PyTorch's threads copy: no step runs at the same time."""

    gives_copies = True

    def __init__(self) -> None:
        self._blocks: dict[Block, tuple[Layout, Tensor]] = {}

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        for name, view in self.room(block, Layout(tensors)).items():
            view.copy_(tensors[name].detach())

    def room(self, block: Block, layout: Layout) -> dict[str, Tensor]:
        known = self._blocks.get(block)
        # Nobody reads the old content: `get` gives copies, and blocks that are viewed are put once.
        memory = known[1] if known and known[0].num_bytes == layout.num_bytes else layout.allocate(HOST_POOL)
        self._blocks[block] = layout, memory
        return layout.views(memory)

    def get(self, block: Block) -> dict[str, Tensor]:
        layout, memory = self._blocks[block]
        return layout.views(layout.allocate().copy_(memory))

    def view(self, block: Block) -> dict[str, Tensor]:
        layout, memory = self._blocks[block]
        return layout.views(memory)

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        layout, memory = self._blocks[block]
        return picked(layout.views(memory), rows)

    def close(self) -> None:
        self._blocks.clear()


def picked(tensors: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Copies of some rows of each tensor, where it lies; on the CPU in pooled memory."""
    return {
        name: pick_rows(tensor, rows, empty((len(rows), *tensor.shape[1:]), tensor.dtype, tensor.device))
        for name, tensor in tensors.items()
    }


def copied(tensor: Tensor) -> Tensor:
    """A contiguous copy, in pooled memory, made by the calling thread alone."""
    return copy_alone_into(empty(tensor.shape, tensor.dtype, tensor.device), tensor.detach())


def copy_alone_into(into: Tensor, tensor: Tensor) -> Tensor:
    """Copy by the calling thread alone; returns ``into``. PyTorch's own copy would take threads from the step that runs."""
    if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel():
        np.copyto(flat_bytes(into), flat_bytes(tensor))
        return into
    return into.copy_(tensor)
