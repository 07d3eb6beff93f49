"""Copies of single rows, for compiled loops that find out row by row where each of them lies."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import types

from sagann.jit import compiled

Array: TypeAlias = np.ndarray[Any, Any]

_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))


@compiled(inline="always")
def copy_row(source: Array, row: int, target: Array, place: int) -> None:
    """Copy row ``row`` of bytes from ``source`` to row ``place`` of ``target``; both are contiguous uint8 [rows, bytes of a row].

    Only the width of ``target`` counts, so ``source`` may be flat. The rows must not overlap, and no position is checked.
    """
    row_bytes = np.int64(target.shape[1])
    into = np.int64(target.ctypes.data) + np.int64(place) * row_bytes
    _memcpy(into, np.int64(source.ctypes.data) + np.int64(row) * row_bytes, row_bytes)
