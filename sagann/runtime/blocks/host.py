"""Hosts: places for blocks that are not in the memory that computes.

A block lies on a host as one region: its tensors side by side, in a piece of memory or in a range of a file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from sagann.graph.rows import flat_bytes, pick_rows
from sagann.kernels.memory import empty
from sagann.kernels.packed import Layout, Region
from sagann.plan.steps import Block
from sagann.runtime.blocks.spill import failing, unnamed_file
from sagann.runtime.device.streams import PinnedPool
from sagann.storage.positioned import is_cached, read_bytes, write_bytes
from sagann.storage.scattered import read_rows

_NOWHERE = torch.empty(0, dtype=torch.uint8)


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


class RamHost:
    """Blocks in the host's memory: copies in pinned memory of a pool, or, without one, the tensors that are put, which stay where they lie.

    A host that ``lasts`` keeps this memory when it is closed: blocks that are put again lie where they lay. Whoever changes a block that was
    put puts it again before it is read.
    """

    lies_in_memory = True
    "Whether ``get`` gives the memory in which a block lies, which callers must not modify, and not memory of its own."

    def __init__(self, pinned: PinnedPool | None = None, *, lasts: bool = False) -> None:
        self._pinned, self._lasts = pinned, lasts
        self._regions: dict[Block, Region] = {}
        # An epoch that never runs its backward returns its memory as well.
        self._end = finalize(self, _forget, pinned, self._regions)
        self._end.atexit = False

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Keep a block's tensors. Threads may put and get at once, but not the same block."""
        if self._pinned is None:
            # Contiguous, as copies are.
            kept = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
            self._regions[block] = Region(Layout(kept), _NOWHERE, kept)
            return
        for name, view in self.room(block, Layout(tensors)).items():
            view.copy_(tensors[name].detach())

    def room(self, block: Block, layout: Layout) -> dict[str, Tensor]:
        """Where the tensors of a block will lie, for others to write."""
        known = self._regions.get(block)
        # Nobody reads the old content: a block is stored again only after it was read.
        if self._pinned is None:
            known = Region(layout, layout.allocate())
        elif known is None or known.layout.num_bytes != layout.num_bytes:
            if known is not None:
                self._pinned.reclaim([known.memory])
            known = Region(layout, self._pinned.take(layout.num_bytes))
        self._regions[block] = region = Region(layout, known.memory)
        return region.views()

    def get(self, block: Block) -> Region:
        """The tensors of a block that were put last."""
        return self._regions[block]

    def view(self, block: Block) -> dict[str, Tensor]:
        """The tensors of a block where they lie, once they do. Callers must not modify them."""
        return self._regions[block].views()

    def pick(self, block: Block, rows: Tensor) -> Region:
        """Copies of some rows, in ascending order, of each tensor of a block."""
        region = self._regions[block]
        found = region.layout.of_rows(len(rows))
        memory, tensors = found.allocate(), region.views()
        for name, into in found.views(memory).items():
            pick_rows(tensors[name], rows, into)
        return Region(found, memory)

    def is_at_hand(self, block: Block) -> bool:
        """Whether a block can be read without waiting for a disk, as far as the system tells."""
        return True

    def close(self) -> None:
        """Forget all blocks."""
        if not self._lasts:
            _forget(self._pinned, self._regions)


def _forget(pinned: PinnedPool | None, regions: dict[Block, Region]) -> None:
    if pinned is not None:
        pinned.reclaim([region.memory for region in regions.values()])
    regions.clear()


class DiskHost:
    """Blocks in one file without a name on the disk of a folder, one after the other; methods are those of :class:`RamHost`.

    A block that is put again replaces itself. A disk that is full or fails is a SpillError.
    """

    lies_in_memory = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Made when a block is put.
        self._file: IO[bytes] | None = None
        # By block, its first byte in the file, and its layout.
        self._places: dict[Block, tuple[int, Layout]] = {}
        self._end = 0
        "Bytes of all regions."
        self._pages = torch.empty(0, dtype=torch.uint8)
        "The file, or its beginning, mapped into memory."
        self._lock = Lock()

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        layout = Layout(tensors)
        with self._used("written") as file:
            offset = self._place_for(block, layout, file)
            for name, tensor in tensors.items():
                write_bytes(file, flat_bytes(tensor).data, offset + layout.offset(name))

    def room(self, block: Block, layout: Layout) -> dict[str, Tensor]:
        """Where the tensors of a block will lie, for others to write. Its room on the disk is reserved now."""
        with self._used("written") as file:
            offset = self._place_for(block, layout, file)
            os.posix_fallocate(file, offset, max(1, layout.num_bytes))
        return self.view(block)

    def view(self, block: Block) -> dict[str, Tensor]:
        """The tensors of a block where they lie: pages of the file."""
        offset, layout = self._places[block]
        end = offset + layout.num_bytes
        with self._used("read") as file, self._lock:
            if end > len(self._pages):
                # Mapped anew each time that the file has doubled. The end is a hole, which takes no room.
                os.ftruncate(file, 2 * self._end)
                self._pages = torch.frombuffer(mmap.mmap(file, 2 * self._end), dtype=torch.uint8)
            return layout.views(self._pages[offset:end])

    def _place_for(self, block: Block, layout: Layout, file: int) -> int:
        """Room for a block: its own, where it had as much before, or else at the end of the file."""
        with self._lock:
            offset, known = self._places.get(block, (0, None))
            if known is None or layout.num_bytes > known.num_bytes:
                offset, self._end = self._end, self._end + layout.num_bytes
                # The last tensor may end before its room does.
                os.ftruncate(file, max(self._end, len(self._pages)))
            self._places[block] = offset, layout
            return offset

    def get(self, block: Block) -> Region:
        offset, layout = self._places[block]
        memory = layout.allocate()
        with self._used("read") as file:
            read_bytes(file, memory.numpy().data, offset)
        return Region(layout, memory)

    def is_at_hand(self, block: Block) -> bool:
        """Whether the system's page cache has a block. Errors are left to the reader."""
        offset, layout = self._places[block]
        return self._file is not None and is_cached(self._file.fileno(), offset, layout.num_bytes)

    def pick(self, block: Block, rows: Tensor) -> Region:
        """Read some rows of each of a block's tensors; the rows between them are not read."""
        offset, layout = self._places[block]
        found = layout.of_rows(len(rows))
        memory = found.allocate()
        with self._used("read") as file:
            for name, tensor in found.views(memory).items():
                read_rows(file, offset + layout.offset(name), rows, tensor)
        return Region(found, memory)

    def close(self) -> None:
        """Forget all blocks; the file vanishes. No thread may read or write."""
        self._places.clear()
        file, self._file, self._end, self._pages = self._file, None, 0, torch.empty(0, dtype=torch.uint8)
        if file is not None:
            # Closed here: the traceback of an error may keep the object from being collected.
            file.close()

    @contextmanager
    def _used(self, action: str) -> Iterator[int]:
        """Inside the ``with`` block, the file stays open; errors of the system name the folder."""
        with failing(f"cannot be {action}", self._folder):
            with self._lock:
                if self._file is None:
                    self._file = unnamed_file(self._folder)
                    # Python warns of a file that is collected open.
                    finalize(self, self._file.close)
                file = self._file.fileno()
            yield file


Host = RamHost | DiskHost
"A place for blocks that are not in the memory that computes."


def picked(tensors: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Copies of some rows of each tensor, where it lies; on the CPU in pooled memory."""
    return {
        name: pick_rows(tensor, rows, empty((len(rows), *tensor.shape[1:]), tensor.dtype, tensor.device))
        for name, tensor in tensors.items()
    }


def copied(tensors: Mapping[str, Tensor]) -> Region:
    """Copies of tensors, side by side in pooled memory."""
    layout = Layout(tensors)
    region = Region(layout, layout.allocate())
    for name, view in region.views().items():
        view.copy_(tensors[name])
    return region


def copy_alone_into(into: Tensor, tensor: Tensor) -> Tensor:
    """Copy by the calling thread alone; returns ``into``. PyTorch's own copy would take threads from the step that runs."""
    if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel():
        np.copyto(flat_bytes(into), flat_bytes(tensor))
        return into
    return into.copy_(tensor)
