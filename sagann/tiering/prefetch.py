"""Prefetching for loops over ids: entries of a large table are far apart, and a loop that waits for one after the other is slow."""

from __future__ import annotations

import numpy as np

from sagann.jit import compiled
from sagann.kernels.edge.cpu.access import prefetcher
from sagann.tiering.cache import Array

AHEAD = 128
"Number of ids whose entries are prefetched before the first of them is used."

_four_bytes, _eight_bytes = prefetcher("i4", 1), prefetcher("i8", 1)


@compiled(inline="always")
def prefetch_by_id(table: Array, ids: Array, first: int) -> None:
    """Prefetch the entries, 4 bytes each, of AHEAD ids from position ``first`` on."""
    address = np.int64(table.ctypes.data)
    for position in range(first, min(first + AHEAD, len(ids))):
        _four_bytes(address, ids[position])


@compiled(inline="always")
def prefetch_by_slot(table: Array, slot_of: Array, ids: Array, first: int) -> None:
    """Prefetch the entries, 8 bytes each, of the slots of AHEAD ids from position ``first`` on."""
    address = np.int64(table.ctypes.data)
    for position in range(first, min(first + AHEAD, len(ids))):
        slot = np.int64(slot_of[ids[position]])
        if slot >= 0:
            _eight_bytes(address, slot)
