"""Host: where blocks lie that are not in the device's memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sagann.graph.rows import pick_rows
from sagann.kernels.memory import Pool, empty
from sagann.kernels.packed import Layout
from sagann.plan.steps import Block

HOST_POOL = Pool(most_times=1)
"Memory of blocks that lie in the process's memory, beyond any budget; the pool of results is kept within a budget."
# A thread that held the lock does not live on in a child.
os.register_at_fork(after_in_child=HOST_POOL.unlock)


class Host(Protocol):
    """Keeps copies of blocks. Threads may put and get at once, but never the same block."""

    is_memory: bool
    "Whether blocks lie in the memory of the processor that computes, so that it copies them itself."

    gives_copies: bool
    "Whether a block is read into memory of its own; else what is read is the host's, and must stay as it is."

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors."""
        ...

    def get(self, block: Block) -> dict[str, Tensor]:
        """What was put last."""
        ...

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        """Copies of some rows, in ascending order, of each tensor of what was put last."""
        ...

    def close(self) -> None:
        """Forget all blocks."""
        ...


class MemoryHost(Host, Protocol):
    """Keeps blocks where the processor that computes can read them as they lie."""

    def view(self, block: Block) -> dict[str, Tensor]:
        """What was put last, as it lies: not to be changed, by nobody, and not to be put again while it is read."""
        ...


class SharedHost:
    """Blocks in the process's memory, as they are: nothing is copied. For what nobody changes."""

    is_memory = True
    gives_copies = False

    def __init__(self) -> None:
        self._blocks: dict[Block, dict[str, Tensor]] = {}

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Keep a block's tensors."""
        self._blocks[block] = dict(tensors)

    def get(self, block: Block) -> dict[str, Tensor]:
        """What was put last."""
        return dict(self._blocks[block])

    view = get

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        """Copies of some rows of each tensor of what was put last."""
        return picked(self._blocks[block], rows)

    def close(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()


class RamHost:
    """Blocks in the process's memory, copied by all of its threads: nobody computes meanwhile."""

    is_memory = True
    gives_copies = True

    def __init__(self) -> None:
        self._blocks: dict[Block, tuple[Layout, Tensor]] = {}

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors."""
        layout, known = Layout(tensors), self._blocks.get(block)
        # Nobody reads what was put before: what is read are copies, and views are of what is put once.
        memory = known[1] if known and known[0].num_bytes == layout.num_bytes else layout.allocate(HOST_POOL)
        for name, view in layout.views(memory).items():
            copy_into(view, tensors[name].detach())
        self._blocks[block] = layout, memory

    def get(self, block: Block) -> dict[str, Tensor]:
        """Copies of what was put last."""
        layout, memory = self._blocks[block]
        return layout.views(copy_into(layout.allocate(), memory))

    def view(self, block: Block) -> dict[str, Tensor]:
        """What was put last, as it lies."""
        layout, memory = self._blocks[block]
        return layout.views(memory)

    def pick(self, block: Block, rows: Tensor) -> dict[str, Tensor]:
        """Copies of some rows of each tensor of what was put last."""
        layout, memory = self._blocks[block]
        return picked(layout.views(memory), rows)

    def close(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()


def picked(tensors: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Copies of some rows of each tensor, in pooled memory."""
    return {
        name: pick_rows(tensor, rows, empty((len(rows), *tensor.shape[1:]), tensor.dtype))
        for name, tensor in tensors.items()
    }


def copied(tensor: Tensor) -> Tensor:
    """A contiguous copy, in pooled memory, made by the calling thread alone."""
    return copy_alone_into(empty(tensor.shape, tensor.dtype, tensor.device), tensor.detach())


def copy_into(into: Tensor, tensor: Tensor) -> Tensor:
    """Copy by all of PyTorch's threads, of which none computes meanwhile; gives ``into``."""
    return into.copy_(tensor)


def copy_alone_into(into: Tensor, tensor: Tensor) -> Tensor:
    """Copy by the calling thread alone: PyTorch would have others help, which those that compute need; gives ``into``."""
    if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel():
        np.copyto(_words(into), _words(tensor))
        return into
    return into.copy_(tensor)


def _words(tensor: Tensor) -> np.ndarray:
    """A contiguous tensor's memory, of whatever type."""
    words: np.ndarray = tensor.reshape(-1).view(torch.uint8).numpy()
    return words
