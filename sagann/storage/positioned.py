"""Positioned reads: bytes of a file, or rows of a tensor in a file, into memory of the caller's choice, from any thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from sagann.graph.rows import as_bytes

READ_BYTES = 1 << 20
"Largest number of bytes in one read of rows, unless a single row is larger."
GAP_BYTES = 1 << 17
"Largest gap between two rows that are read together, in bytes: reading this gap takes as long as a second call."
MOST_BYTES = 1 << 30
"Largest number of bytes that one system call reads or writes."

CutShort = Callable[[str], Exception]
"Function that makes the error for a file that ends too early, from a text that says where the file ends."


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
    """Read rows of a tensor in a file. Rows that lie close together are read in one call, with the rows between them.

    Args:
        file: descriptor of the file.
        offset: position of the tensor's first byte in the file.
        rows: integer [m], ascending.
        into: contiguous [m, ...]; receives the rows, and is returned.
        cut_short: makes the error for a file that ends too early.

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
    """Ranges of positions in ``at``; the rows of one range are read in one call."""
    ends = [*(np.flatnonzero(np.diff(at) > most_apart) + 1).tolist(), len(at)]
    first = 0
    for end in ends:
        while first < end:
            last = int(np.searchsorted(at[first:end], at[first] + most_rows)) + first
            yield first, last
            first = last
