"""Mapped: rows of a tensor that is mapped from a file, read by position instead of page by page.

A page of a map is read when it is touched, by whoever touches it, and stays in the process's memory until the system takes
it back. A positioned read brings what is asked for into memory of the caller's choice, in large pieces, and any thread can
do it. The bytes are the same as long as nobody has written to the map: the system's own account of the map says so.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from weakref import finalize

import torch
from torch import Tensor

from sagann.errors import DatasetError
from sagann.storage.file_cache import is_cached

_MAPS = Path("/proc/self/smaps")
# 7f00-7f10 rw-p 00000080 fe:00 1234   /path
_MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S{4} ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) +(/.*)")
# Longest that one call of the system may read.
_AT_ONCE = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class _Map:
    first: int
    "Address."
    offset: int
    "Offset of that address in the file."
    device: int
    inode: int
    path: str


class MappedRows:
    """Rows of a file that a tensor is mapped from.

    Args:
        tensor: whose rows are read; not kept alive.
        file: descriptor of the file, closed when this is collected.
        offset: of the tensor's first byte in the file.
    """

    def __init__(self, tensor: Tensor, file: int, offset: int) -> None:
        self._file, self._offset = file, offset
        self._row_bytes = tensor[:1].nbytes
        finalize(self, os.close, file)

    def is_at_hand(self, rows: slice) -> bool:
        """Whether a range of rows can be read without waiting for a disk, as far as the system tells."""
        num_bytes = (rows.stop - rows.start) * self._row_bytes
        return is_cached(self._file, self._offset + rows.start * self._row_bytes, num_bytes)

    def read(self, rows: slice, into: Tensor) -> Tensor:
        """Read a range of rows.

        Args:
            rows: which.
            into: contiguous, of so many rows; is given back.
        Raises:
            DatasetError: the file has become shorter.
        """
        self.fill(into.reshape(-1).view(torch.uint8).numpy().data, rows.start * self._row_bytes)
        return into

    def fill(self, left: memoryview, offset: int) -> None:
        """Read bytes of the tensor.

        Args:
            left: is filled.
            offset: of the first byte in the tensor.
        Raises:
            DatasetError: the file has become shorter.
        """
        offset += self._offset
        while left:
            read = os.preadv(self._file, [left[:_AT_ONCE]], offset)
            if read == 0:
                raise DatasetError(
                    "array file has become shorter",
                    value=f"it ends at byte {offset}, {len(left)} more are needed",
                    where=os.readlink(f"/proc/self/fd/{self._file}"),
                    fix="Leave a dataset alone while a run reads it; import it again.",
                )
            left, offset = left[read:], offset + read


def mapped_rows(tensor: Tensor) -> MappedRows | None:
    """What reads a tensor's rows from its file; None where it is not a contiguous tensor, or not mapped as the file is.

    It is mapped as the file is where the map is on one file that still stands at its path, and none of its pages was written
    to. Only Linux tells.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or not tensor.numel() or not _MAPS.exists():
        return None
    found = _map_of(tensor.data_ptr(), tensor.nbytes)
    if found is None:
        return None
    try:
        file = os.open(found.path, os.O_RDONLY)
    except OSError:
        return None
    state = os.fstat(file)
    if (state.st_dev, state.st_ino) != (found.device, found.inode):
        os.close(file)
        return None
    return MappedRows(tensor, file, found.offset + tensor.data_ptr() - found.first)


def _map_of(address: int, num_bytes: int) -> _Map | None:
    """The map of a file that holds a range of addresses as they are in the file."""
    candidate: _Map | None = None
    with _MAPS.open() as maps:
        for line in maps:
            if (at := _MAP.match(line)) is not None:
                first, last, offset, major, minor = (int(number, 16) for number in at.group(1, 2, 3, 4, 5))
                holds = first <= address and address + num_bytes <= last
                device = os.makedev(major, minor)
                candidate = (
                    _Map(first=first, offset=offset, device=device, inode=int(at[6]), path=at[7]) if holds else None
                )
            elif candidate is not None and line.startswith("Anonymous:"):
                # Pages that were written to are no longer the file's.
                return candidate if line.split()[1] == "0" else None
    return None
