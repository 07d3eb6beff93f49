"""Scratch: large arrays in files without names, for results that are computed once and read slab by slab.

Such an array is a tensor like any other. It lies in the page cache, which the system shrinks when memory is short, and counts
towards no budget. The file is unlinked as soon as it is open, so that it vanishes with the process. Its room on the disk is
reserved before it is written, so that a full disk is an error and not a signal.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sagann.free_space import nearest_folder
from sagann.kernels.memory import SMALLEST_BYTES
from sagann.runtime.blocks.spill import SpillError


class Scratch:
    """Makes arrays on disk; hand it to :func:`sagann.graph.large_arrays.made_by`.

    Args:
        folder: the files lie on its disk. Where it does not exist, the nearest existing folder above it is used.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = Scratch(Path(folder))((1 << 20, 2), torch.float32)
        ...     rows.fill_(3)[0], os.listdir(folder)
        (tensor([3., 3.]), [])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor; a tensor of less than a mebibyte lies in memory.

        Raises:
            SpillError: the folder cannot be written, or has too little room.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < SMALLEST_BYTES:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        folder = self.folder.absolute()
        try:
            folder = nearest_folder(folder)
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
                memory = mmap.mmap(file.fileno(), num_bytes)
        except OSError as error:
            raise SpillError(
                "an array cannot be kept on disk",
                value=f"{num_bytes} bytes: {error.strerror or error}",
                where=f"'{folder}'",
                fix="Free some room, or spill to another disk.",
            ) from error
        return torch.frombuffer(memory, dtype=dtype).reshape(tuple(shape))
