"""Spill: blocks and large arrays in files without names, so that nothing is left behind however the process ends.

The files lie on the disk of the spill folder; where the folder does not exist, on that of the nearest folder above it.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import IO
from weakref import finalize

import torch
from torch import Tensor

from sagann.byte_size import with_exact
from sagann.errors import SagannError
from sagann.free_space import nearest_folder
from sagann.graph.rows import flat_bytes
from sagann.kernels.memory import SMALLEST_BYTES
from sagann.kernels.packed import Layout, Region
from sagann.plan.steps import Block
from sagann.storage.positioned import is_cached, read_bytes, write_bytes
from sagann.storage.scattered import read_rows


class SpillError(SagannError, OSError):
    """A spill folder that is full or cannot be written, or a disk that fails; the message names the folder."""


def require_room(folder: Path, needed_bytes: int) -> None:
    """Check that the disk of a spill folder has room for more bytes.

    Raises:
        SpillError: it has not.
    """
    with _failing("cannot be used", folder):
        free = shutil.disk_usage(nearest_folder(folder)).free
    if free < needed_bytes:
        raise SpillError(
            f"too little room to spill: {with_exact(free)} are free, {with_exact(needed_bytes)} are needed (in "
            f"'{folder}')",
            hint="Free some room, spill to another disk, or raise the memory budget.",
        )


def unnamed_file(folder: Path) -> IO[bytes]:
    """A new file without a name on the disk of a spill folder; it vanishes when it is closed.

    Raises:
        SpillError: it cannot be made.
    """
    with _failing("cannot be used", folder):
        return tempfile.TemporaryFile(dir=nearest_folder(folder), buffering=0)


@contextmanager
def _failing(what: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except SpillError:
        raise
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        raise SpillError(
            f"a spill folder {what}: {os.strerror(number) if number else str(error)} (in '{folder}')",
            hint="Spill to a writable folder on a sound disk with room; start again, from the last checkpoint if there is one.",
        ) from error


class DiskHost:
    """Blocks in one file without a name, one after the other; a block that is put again replaces itself.

    A disk that is full or fails is a SpillError.

    Args:
        folder: the file lies on its disk.
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
        with suppress(SpillError), self._used("read") as file:
            return is_cached(file, offset, layout.num_bytes)
        return False

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
        with _failing(f"cannot be {action}", self._folder):
            with self._lock:
                if self._file is None:
                    self._file = unnamed_file(self._folder)
                    # Python warns of a file that is collected open.
                    finalize(self, self._file.close)
                file = self._file.fileno()
            yield file


class Scratch:
    """Makes arrays on disk; hand it to :func:`sagann.graph.large_arrays.made_by`.

    Such an array is a tensor like any other. It lies in the page cache, which the system shrinks when memory is short, and counts
    towards no budget. Its room on the disk is reserved before it is written, so that a full disk is an error and not a signal.

    Args:
        folder: the arrays lie on its disk.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = Scratch(Path(folder))((1 << 20, 2), torch.float32)
        ...     rows.fill_(3)[0], os.listdir(folder)
        (tensor([3., 3.]), [])
    """

    def __init__(self, folder: Path) -> None:
        # The process may change its working folder.
        self.folder = folder.absolute()

    def __call__(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor; a tensor of less than a mebibyte lies in memory.

        Raises:
            SpillError: the folder cannot be written, or has too little room.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < SMALLEST_BYTES:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        with (
            _failing(f"has no room for an array of {with_exact(num_bytes)}", self.folder),
            unnamed_file(self.folder) as file,
        ):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            memory = mmap.mmap(file.fileno(), num_bytes)
        return torch.frombuffer(memory, dtype=dtype).reshape(tuple(shape))
