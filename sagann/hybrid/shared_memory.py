"""Shared memory: memory without a name, which this process and an accelerator's process both see, however either of them ends.

A piece is a file without a name. All of it is taken when it is made, so that a full system is an error there, and no signal when the memory is
written. The other process gets the file's descriptor through the pipe between both; no socket and no folder is needed for that.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import weakref
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path

import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.errors import InputError

# Where Linux keeps files that are memory.
_IN_MEMORY = Path("/dev/shm")


class SharedPiece:
    """A piece of memory that this process has made.

    Args:
        num_bytes: size of the piece, at least 1.
        name: of the trainer that it is for, in errors.
    Raises:
        InputError: there is no room.
    """

    def __init__(self, num_bytes: int, name: str) -> None:
        folder = _IN_MEMORY if _IN_MEMORY.is_dir() else Path(tempfile.gettempdir())
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.truncate(num_bytes)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                self.bytes = _mapped(file.fileno(), num_bytes)
                "The memory: uint8 [num_bytes]."
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise InputError(
                f"the memory that processes share is full: {format_bytes(num_bytes)} wanted, "
                f"{format_bytes(shutil.disk_usage(folder).free)} free in {folder} ({error.strerror}) (in "
                f"trainer '{name}')",
                hint="Lower the batch size or the batches ahead, or give the container more (docker run --shm-size).",
            ) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)

    def send(self, pipe: Connection, pid: int) -> None:
        """Give the piece to the process at the other end of a pipe, which calls :func:`received`; once."""
        send_handle(pipe, self._descriptor, pid)
        self._close()


def received(pipe: Connection, num_bytes: int) -> Tensor:
    """The memory of a piece that comes through a pipe: uint8 [num_bytes]."""
    descriptor = recv_handle(pipe)
    try:
        return _mapped(descriptor, num_bytes)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, num_bytes: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, num_bytes), dtype=torch.uint8)
