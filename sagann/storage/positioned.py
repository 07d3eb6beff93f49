"""Positioned reads: bytes of a file, or rows of a tensor in a file, into memory of the caller's choice, from any thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from sagann.graph.rows import as_bytes

READ_BYTES = 1 << 20
"Most bytes of a file that one read of rows takes, unless a row has more."
GAP_BYTES = 1 << 17
"Rows in a file whose gap has at most so many bytes are read together: a call takes as long as reading the gap."
MOST_BYTES = 1 << 30
"Most bytes that one call of the system may read or write."

CutShort = Callable[[str], Exception]
"Makes the error of a file that ends too early, from a text that says where."


def read_bytes(file: int, left: memoryview, offset: int, cut_short: CutShort) -> None:
    """Fill memory with the bytes of an open file from a position on."""
    while left:
        read = os.preadv(file, [left[:MOST_BYTES]], offset)
        if read == 0:
            end = min(offset, os.fstat(file).st_size)
            raise cut_short(f"it ends at byte {end}, {offset + len(left) - end} more are needed")
        left, offset = left[read:], offset + read


def write_bytes(file: int, left: memoryview, offset: int) -> None:
    """Write bytes to an open file from a position on."""
    while left:
        written = os.pwrite(file, left[:MOST_BYTES], offset)
        left, offset = left[written:], offset + written


def read_rows(file: int, offset: int, rows: Tensor, into: Tensor, cut_short: CutShort) -> Tensor:
    """Read rows of a tensor in a file, and the rows between them only where they lie close.

    Args:
        file: descriptor of the file.
        offset: position of the tensor's first byte in the file.
        rows: integer [m], ascending.
        into: contiguous [m, ...]; becomes the rows, and is returned.
        cut_short: makes the error of a file that ends before.

    References:
        Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2: the filter that selects useful vertices in the host's memory.
    """
    if not into.numel():
        return into
    target, at = as_bytes(into), rows.numpy().astype(np.int64)
    row_bytes = target.shape[1]
    piece = np.empty(max(READ_BYTES, row_bytes), np.uint8)
    for first, last in _together(at, max(1, GAP_BYTES // row_bytes), len(piece) // row_bytes):
        begin, end = int(at[first]), int(at[last - 1]) + 1
        read = piece[: (end - begin) * row_bytes]
        read_bytes(file, read.data, offset + begin * row_bytes, cut_short)
        found = read.reshape(end - begin, row_bytes)
        np.take(found, at[first:last] - begin, axis=0, out=target[first:last], mode="clip")
    return into


def _together(at: np.ndarray, most_apart: int, most_rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of positions in ``at``: the rows of a range are read at a time."""
    ends = [*(np.flatnonzero(np.diff(at) > most_apart) + 1).tolist(), len(at)]
    first = 0
    for end in ends:
        while first < end:
            last = int(np.searchsorted(at[first:end], at[first] + most_rows)) + first
            yield first, last
            first = last
