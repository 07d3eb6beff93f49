"""Ranges of the integers that files and arguments state, each written down once, under the name of its field or argument.

Readers of files and checks of arguments ask this table, so the same number has the same range wherever it is stated; the options of a run
have theirs in :mod:`sagann.config`. A number outside its range is refused before anything loops, allocates or multiplies by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sagann.errors import InputError, shown


@dataclass(frozen=True, slots=True)
class Range:
    """The integers from ``low`` to ``high``.

    Example:
        >>> 7 in Range(1, 1000), True in Range(0, 1), "7" in Range(1, 1000)
        (True, False, False)
        >>> print(Range(0, 2**48 - 1))
        an integer from 0 to 2^48 - 1
    """

    low: int
    "Smallest integer of the range."
    high: int
    "Largest integer of the range."

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        high = str(self.high)
        for less, text in ((0, ""), (1, " - 1")):
            bits = (self.high + less).bit_length() - 1
            if self.high + less == 2**bits > 2**16:
                high = f"2^{bits}{text}"
        return f"an integer from {self.low} to {high}"


# Rows of 8 bytes each then have fewer than 2^63 bytes, with room for 4096 columns.
_ROWS = Range(0, 2**48 - 1)
# The narrowest integers in which torch keeps columns and edge types have 32 bits.
_COLUMNS = Range(0, 2**31 - 1)
_WIDTH = Range(1, 2**31 - 1)
_TIMES = Range(1, 2**63 - 1)
# They are started all at once.
_THREADS = Range(1, 2**13)
# NumPy allows no more in its older versions.
_MOST_DIMENSIONS = 32

RANGES: Mapping[str, Range] = MappingProxyType(
    {
        # Graphs.
        "num_vertices": _ROWS,
        "num_edges": _ROWS,
        "num_graphs": _ROWS,
        "num_classes": _ROWS,
        "num_targets": _COLUMNS,
        "num_graph_classes": _ROWS,
        "num_graph_targets": _COLUMNS,
        "num_features": _COLUMNS,
        "num_edge_types": _COLUMNS,
        "edge_dim": _COLUMNS,
        # Arrays.
        "size": _ROWS,
        "crc32": Range(0, 2**32 - 1),
        # Training.
        "epochs": _TIMES,
        "hits": _TIMES,
        "seed": Range(0, 2**63 - 1),
        # Mini-batches.
        "fanout": _WIDTH,
        # With replacement, every destination gives as many edges.
        "replacing_fanout": Range(1, 2**16),
        "negatives": Range(0, 2**31 - 1),
        "drawn_negatives": Range(1, 2**16),
        "measured": Range(1, 2**31 - 1),
        "batch_size": _TIMES,
        "epoch": Range(0, 2**63 - 1),
        "batch": Range(0, 2**63 - 1),
        "ahead": Range(0, 2**13),
        "iterations": Range(0, 2**63 - 1),
        # Splits, generators and orders of vertices. Positions in larger random arrays do not fit 64 bits.
        "split": _ROWS,
        "drawn": Range(0, 2**40),
        "parts": Range(1, 2**31 - 1),
        # Bytes of memory and of files.
        "bytes": Range(0, 2**63 - 1),
        # Machines of plans.
        "num_cores": _TIMES,
        "cache_bytes": _TIMES,
        # Threads of Numba.
        "threads": _THREADS,
    }
)
"""Range of each number by its name: 'size' of an array in one dimension, 'crc32' of a file's part, 'split' for vertices of a
split, 'drawn' for vertices, edges, features and classes of a generated graph, 'bytes' for a budget or a length."""


def require_integer(value: object, name: str, *, where: str) -> None:
    """Refuse an argument (``where``) that is not an integer in the range of ``name``."""
    if value not in RANGES[name]:
        raise InputError(
            f"{name} is out of range: {shown(value)}, expected {RANGES[name]} (in {where})",
            hint=f"Pass {RANGES[name]}.",
        )


def require_shape(shape: Sequence[object], item_bytes: int) -> None:
    """Raise a ValueError for a shape that no array has.

    It may have too many dimensions, a size out of range, or more bytes than 64 bits count. Sizes of 0 are left out of the
    product, as NumPy does: also an array without values has a bounded extent.

    Example:
        >>> require_shape((0, 10**30), 4)
        Traceback (most recent call last):
        ...
        ValueError: size 1000000000000000000000000000000 in a shape, expected an integer from 0 to 2^48 - 1
    """
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a shape of {len(shape)} dimensions, expected at most {_MOST_DIMENSIONS}")
    for size in shape:
        if size not in RANGES["size"]:
            raise ValueError(f"size {shown(size, 40)} in a shape, expected {RANGES['size']}")
    num_bytes = item_bytes * math.prod(size for size in shape if isinstance(size, int) and size)
    if num_bytes not in RANGES["bytes"]:
        raise ValueError(f"shape {tuple(shape)} of {num_bytes} bytes, beyond 64 bits")
