"""Array maps: the files that arrays in use are mapped from, known as long as the arrays live.

A mapped array looks like any other. What concerns its file alone, such as the checksums of the content, is found here by the
address of the array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from torch import Tensor


@dataclass(kw_only=True, slots=True)
class ArrayMap:
    """A file that an array is mapped from."""

    path: Path
    "The file, as it was opened."
    begin: int
    "Address of the array's first byte."
    end: int
    "Address after the array's last byte."
    checks: Sequence[Callable[[], None]]
    "Each compares the checksum of a part of the file; empty once they were made."


_MAPS: dict[int, ArrayMap] = {}
"By address of the array."


def remember(array: np.ndarray[Any, Any], path: Path, checks: Sequence[Callable[[], None]] = ()) -> None:
    """Note that an array is mapped from a file. A DatasetError of one of the ``checks`` says that the file is damaged."""
    begin = array.ctypes.data
    _MAPS[begin] = ArrayMap(path=path, begin=begin, end=begin + array.nbytes, checks=checks)
    finalize(array, _MAPS.pop, begin).atexit = False


def maps_of(tensors: Iterable[Tensor]) -> list[ArrayMap]:
    """The maps in which dense tensors lie, in their order, each once."""
    found = {}
    for tensor in tensors:
        at = tensor.data_ptr()
        found |= {each.begin: each for each in list(_MAPS.values()) if each.begin <= at < each.end}
    return list(found.values())
