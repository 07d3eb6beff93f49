"""Numba kernels of the external sort: degrees by bin, and edges by range.

Legend: n edges; a bin is 2^shift consecutive ids; a part is a range of bins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sagann.machine_code import compiled

Array = np.ndarray[Any, Any]


@compiled()
def count_bins(ids: Array, first: int, shift: int, counts: Array) -> None:
    """Add the ids [n] to the counts of their bins, int64 [bins]; bins start at id ``first``."""
    for e in range(len(ids)):
        counts[(np.int64(ids[e]) - first) >> shift] += 1


@compiled()
def split_by_part(
    keys: Array,
    others: Array,
    first: int,
    shift: int,
    part_of_bin: Array,
    ends: Array,
    out_keys: Array,
    out_others: Array,
    positions: Array,
) -> None:
    """Group edges by the part of their key, stably.

    Args:
        keys: ids that decide [n]; others: the other ends [n].
        first, shift: id of the first bin, and log2 of the ids in one.
        part_of_bin: part of each bin.
        ends: int64 [num_parts], set to the end of each part in the output.
        out_keys, out_others: [n], grouped.
        positions: int32 [n], where each edge stood; length 0 where nobody asks.
    """
    ends[:] = 0
    for e in range(len(keys)):
        ends[part_of_bin[(np.int64(keys[e]) - first) >> shift]] += 1
    total = 0
    for p in range(len(ends)):
        count = ends[p]
        ends[p] = total
        total += count
    for e in range(len(keys)):
        part = part_of_bin[(np.int64(keys[e]) - first) >> shift]
        at = ends[part]
        ends[part] = at + 1
        out_keys[at] = keys[e]
        out_others[at] = others[e]
        if len(positions):
            positions[at] = e
