"""Hosts: places for blocks that are not in the memory that computes.

A block lies on a host as one region: its tensors side by side, in a piece of memory or in a range of a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from sagann.graph.rows import flat_bytes, pick_rows
from sagann.kernels.memory import Pool, empty
from sagann.kernels.packed import Layout, Region
from sagann.plan.steps import Block

HOST_POOL = Pool(most_times=1)
"Memory of blocks that lie in the process's memory, beyond any budget; the pool of results is kept within a budget."
# A thread that held the lock does not live on in a child.
os.register_at_fork(after_in_child=HOST_POOL.unlock)


class Host(Protocol):
    """Keeps copies of blocks. Threads may put and get at once, but not the same block."""

    @property
    def lies_in_memory(self) -> bool:
        """Whether ``get`` gives the memory in which a block lies, which callers must not modify, and not memory of its own."""

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Copy a block's tensors."""

    def get(self, block: Block) -> Region:
        """The tensors of a block that were put last."""

    def pick(self, block: Block, rows: Tensor) -> Region:
        """Copies of some rows, in ascending order, of each tensor of a block."""

    def room(self, block: Block, layout: Layout) -> dict[str, Tensor]:
        """Where the tensors of a block will lie, for others to write: memory, or pages of a file."""

    def view(self, block: Block) -> dict[str, Tensor]:
        """The tensors of a block where they lie, once they do. Callers must not modify them."""

    def is_at_hand(self, block: Block) -> bool:
        """Whether a block can be read without waiting for a disk, as far as the system tells."""

    def close(self) -> None:
        """Forget all blocks."""


class Parts(NamedTuple):
    """A block as hosts and stores give it: regions with its tensors, and what it is made of them."""

    regions: Sequence[Region]
    build: Callable[[dict[str, Tensor]], Any] = lambda tensors: tensors.get("", tensors)
    "Makes the content of tensors by name. The only tensor of a block without names is its content."

    @classmethod
    def of(cls, content: Any) -> Parts:
        """A block that is read where it lies."""
        return cls([], lambda _: content)

    def content(self, copies: Iterable[Region] | None = None) -> Any:
        """The block's content, in its regions, or in copies of them."""
        regions = self.regions if copies is None else copies
        return self.build({name: tensor for region in regions for name, tensor in region.views().items()})


class HostMemory(Protocol):
    """Gives pieces of the host's memory for blocks."""

    def take(self, num_bytes: int) -> Tensor:
        """A piece of at least so many bytes, uint8."""

    def reclaim(self, pieces: Sequence[Tensor]) -> None:
        """Take pieces back, once no copy touches them."""


class PooledMemory:
    """Memory of :data:`HOST_POOL`, to which it returns when nobody refers to it."""

    def take(self, num_bytes: int) -> Tensor:
        return HOST_POOL.empty((num_bytes // torch.int64.itemsize,), torch.int64).view(torch.uint8)

    def reclaim(self, pieces: Sequence[Tensor]) -> None:
        pass


class RamHost:
    """Copies of blocks in the host's memory. All of PyTorch's threads copy what is put: no step runs at the same time."""

    lies_in_memory = True

    def __init__(self, memory: HostMemory | None = None) -> None:
        self._memory = memory or PooledMemory()
        self._regions: dict[Block, Region] = {}
        # An epoch that never runs its backward returns its memory as well.
        self._end = finalize(self, _forget, self._memory, self._regions)
        self._end.atexit = False

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        for name, view in self.room(block, Layout(tensors)).items():
            view.copy_(tensors[name].detach())

    def room(self, block: Block, layout: Layout) -> dict[str, Tensor]:
        known = self._regions.get(block)
        # Nobody reads the old content: a block is stored again only after it was read.
        if known is None or known.layout.num_bytes != layout.num_bytes:
            if known is not None:
                self._memory.reclaim([known.memory])
            known = Region(layout, self._memory.take(layout.num_bytes))
        self._regions[block] = region = Region(layout, known.memory)
        return region.views()

    def get(self, block: Block) -> Region:
        return self._regions[block]

    def view(self, block: Block) -> dict[str, Tensor]:
        return self._regions[block].views()

    def pick(self, block: Block, rows: Tensor) -> Region:
        region = self._regions[block]
        found = region.layout.of_rows(len(rows))
        memory, tensors = found.allocate(), region.views()
        for name, into in found.views(memory).items():
            pick_rows(tensors[name], rows, into)
        return Region(found, memory)

    def is_at_hand(self, block: Block) -> bool:
        return True

    def close(self) -> None:
        _forget(self._memory, self._regions)


def _forget(memory: HostMemory, regions: dict[Block, Region]) -> None:
    memory.reclaim([region.memory for region in regions.values()])
    regions.clear()


def picked(tensors: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Copies of some rows of each tensor, where it lies; on the CPU in pooled memory."""
    return {
        name: pick_rows(tensor, rows, empty((len(rows), *tensor.shape[1:]), tensor.dtype, tensor.device))
        for name, tensor in tensors.items()
    }


def copied(region: Region, copy_into: Callable[[Tensor, Tensor], Tensor]) -> Region:
    """A copy of a region of a host, in pooled memory."""
    return Region(region.layout, copy_into(region.layout.allocate(), region.bytes))


def copy_alone_into(into: Tensor, tensor: Tensor) -> Tensor:
    """Copy by the calling thread alone; returns ``into``. PyTorch's own copy would take threads from the step that runs."""
    if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel():
        np.copyto(flat_bytes(into), flat_bytes(tensor))
        return into
    return into.copy_(tensor)
