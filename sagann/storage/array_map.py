"""Array maps: the files that arrays in use are mapped from, known as long as the arrays live.

A mapped array looks like any other. What concerns its file alone, such as the checksums of the content, is found here by the
address of the array.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor


@dataclass(kw_only=True, slots=True, eq=False)
class ArrayMap:
    """A file that an array is mapped from."""

    path: Path
    "The file, as it was opened."
    begin: int
    "Address of the array's first byte."
    end: int
    "Address after the array's last byte."
    state: os.stat_result
    "Identity, size and time of the file when it was mapped, or when its checksums were compared last."
    crc32: tuple[int, ...]
    "Checksums of the parts of the array, as the manifest states them."
    checks: Sequence[Callable[[], bool]]
    "Functions, each of which compares the checksum of a part of the array, and says whether it could."
    is_checked: bool = False
    "Whether the whole array has the checksums of the manifest, or was written to and its file has them."

    def is_unchanged(self) -> bool:
        """Whether the file is still at its path, and has not been written to."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        before = self.state
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) == (
            before.st_dev,
            before.st_ino,
            before.st_size,
            before.st_mtime_ns,
        )


_MAPS: dict[int, ArrayMap] = {}
"The maps of all arrays in use, by the address of the array."


def remember(
    array: np.ndarray[Any, Any],
    path: Path,
    state: os.stat_result,
    *,
    crc32: tuple[int, ...] = (),
    checks: Sequence[Callable[[], bool]] = (),
) -> ArrayMap:
    """Note that an array is mapped from a file. A DatasetError of one of the ``checks`` says that the file is damaged.

    ``crc32`` are the checksums that the manifest states.
    """
    begin = array.ctypes.data
    found = _MAPS[begin] = ArrayMap(
        path=path,
        begin=begin,
        end=begin + array.nbytes,
        state=state,
        crc32=crc32,
        checks=checks,
    )
    finalize(array, _MAPS.pop, begin).atexit = False
    return found


def maps_of(tensors: Iterable[Tensor]) -> list[ArrayMap]:
    """The maps in which tensors lie, in their order, each once."""
    found: dict[int, ArrayMap] = {}
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            continue
        at = tensor.data_ptr()
        found |= {each.begin: each for each in list(_MAPS.values()) if each.begin <= at < each.end}
    return list(found.values())
