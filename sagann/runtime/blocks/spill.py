"""Spill: blocks and large arrays in files without names, so that nothing is left behind however the process ends.

The files lie on the disk of the spill folder; where the folder does not exist, on that of the nearest folder above it.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from sagann.byte_size import with_exact
from sagann.errors import SagannError
from sagann.free_space import nearest_folder
from sagann.kernels.memory import SMALLEST_BYTES


class SpillError(SagannError, OSError):
    """A spill folder that is full or cannot be written, or a disk that fails; the message names the folder."""


def require_room(folder: Path, needed_bytes: int) -> None:
    """Check that the disk of a spill folder has room for more bytes.

    Raises:
        SpillError: it has not.
    """
    with failing("cannot be used", folder):
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
    with failing("cannot be used", folder):
        return tempfile.TemporaryFile(dir=nearest_folder(folder), buffering=0)


@contextmanager
def failing(what: str, folder: Path) -> Iterator[None]:
    """Inside the ``with`` block, an error of the system is a SpillError: "a spill folder" with what it does."""
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
            failing(f"has no room for an array of {with_exact(num_bytes)}", self.folder),
            unnamed_file(self.folder) as file,
        ):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            memory = mmap.mmap(file.fileno(), num_bytes)
        return torch.frombuffer(memory, dtype=dtype).reshape(tuple(shape))
