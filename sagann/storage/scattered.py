"""Scattered rows: rows at any positions of a file, read by position into any rows of a tensor, in compiled code.

The rows of a mini-batch lie far apart. A loop in Python, or a page fault for each of them, takes longer than the disk. Here rows
are sorted by position, and rows that lie close together become one read; the loop over the reads is compiled and runs without Python's
lock. The system is told of some reads before they are made, so a disk can work on many of them at once for one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from torch import Tensor

from sagann.graph.rows import as_bytes
from sagann.jit import Array, compiled
from sagann.storage.positioned import read_bytes

READ_BYTES = 1 << 20
"Largest number of bytes in one read of rows, unless a single row is larger."
GAP_BYTES = 1 << 14
"Largest gap between two rows that are read together, in bytes."
AHEAD = 64
"Number of reads that the system is told of before they are made."
_WILL_NEED = 3  # POSIX_FADV_WILLNEED

_pread: Any = types.ExternalFunction("pread", types.intp(types.intc, types.intp, types.uintp, types.int64))
_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
_advise: Any = types.ExternalFunction("posix_fadvise", types.intc(types.intc, types.int64, types.int64, types.intc))


@dataclass(frozen=True, kw_only=True, slots=True)
class Reads:
    """Positioned reads of some rows."""

    num_reads: int
    "Number of reads."
    num_bytes: int
    "Number of bytes that were read, with the gaps between rows that were read together."


def read_rows(file: int, offset: int, rows: Tensor, into: Tensor) -> Tensor:
    """Read rows of a tensor in a file.

    Args:
        file: descriptor of the file.
        offset: position of the tensor's first byte in the file.
        rows: integer [m], in any order.
        into: contiguous [m, ...]; receives the rows, and is returned.

    References:
        Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2: the filter that selects useful vertices in the host's memory.
    """
    if into.numel():
        read_scattered(file, offset, rows.numpy().astype(np.int64), as_bytes(into), np.arange(len(rows)))
    return into


def read_scattered(file: int, offset: int, ids: Array, target: Array, places: Array) -> Reads:
    """Read rows of a tensor in a file into rows of memory.

    Args:
        file: descriptor of the file.
        offset: position of the tensor's first byte in the file.
        ids: int64 [n], the rows to read, in any order; rows may repeat.
        target: uint8 [m, bytes of a row], contiguous.
        places: int64 [n]: row of ``target`` that receives each row.
    """
    row_bytes = target.shape[1]
    if not len(ids) or not row_bytes:
        return Reads(num_reads=0, num_bytes=0)
    order = ids.argsort()
    ids, places = ids[order], places[order]
    piece = np.empty(max(READ_BYTES, row_bytes), np.uint8)
    ends = np.empty(len(ids), np.int64)
    num_reads, num_rows = _together(ids, GAP_BYTES // row_bytes, len(piece) // row_bytes, ends)
    ends, done = ends[:num_reads], 0
    while done < num_reads:
        done = _read(file, offset, ids, target, places, ends, done, piece)
        if done < num_reads:
            # This raises the error with the reason; a read that was only interrupted is made again.
            begin, end = int(ids[ends[done - 1] if done else 0]), int(ids[ends[done] - 1]) + 1
            read_bytes(file, piece[: (end - begin) * row_bytes].data, offset + begin * row_bytes)
    return Reads(num_reads=num_reads, num_bytes=num_rows * row_bytes)


@compiled(inline="always")
def copy_row(source: Array, row: int, target: Array, place: int) -> None:
    """Copy row ``row`` of bytes from ``source`` to row ``place`` of ``target``; both are contiguous uint8 [rows, bytes of a row].

    Only the width of ``target`` counts, so ``source`` may be flat. The rows must not overlap, and no position is checked.
    """
    row_bytes = np.int64(target.shape[1])
    into = np.int64(target.ctypes.data) + np.int64(place) * row_bytes
    _memcpy(into, np.int64(source.ctypes.data) + np.int64(row) * row_bytes, row_bytes)


@compiled()
def _together(ids: Array, most_apart: int, most_rows: int, ends: Array) -> Any:
    """Divide ascending ids into reads; write the position after the last id of each read.

    Returns:
        number of reads, and number of rows in all of them, with the rows between.
    """
    num_reads = num_rows = 0
    first = ids[0]
    for position in range(1, len(ids) + 1):
        last = ids[position - 1]
        if position < len(ids) and ids[position] - last <= most_apart + 1 and ids[position] - first < most_rows:
            continue
        ends[num_reads] = position
        num_reads += 1
        num_rows += last - first + 1
        if position < len(ids):
            first = ids[position]
    return num_reads, num_rows


@compiled()
def _read(
    file: int, offset: int, ids: Array, target: Array, places: Array, ends: Array, done: int, piece: Array
) -> int:
    """Make all reads from number ``done`` on; returns the number of the first read that fails, or the number of reads."""
    row_bytes = target.shape[1]
    into, scratch = np.int64(target.ctypes.data), np.int64(piece.ctypes.data)
    advised = done
    for number in range(done, len(ends)):
        while advised < min(number + AHEAD, len(ends)):
            first = ids[ends[advised - 1]] if advised else ids[0]
            last = ids[ends[advised] - 1]
            _advise(file, offset + first * row_bytes, (last - first + 1) * row_bytes, _WILL_NEED)
            advised += 1
        begin = ends[number - 1] if number else 0
        end = ends[number]
        first, last = ids[begin], ids[end - 1]
        # A single row needs no copy.
        address = scratch if end - begin > 1 else into + places[begin] * row_bytes
        left, at = (last - first + 1) * row_bytes, offset + first * row_bytes
        while left > 0:
            count = _pread(file, address, left, at)
            if count <= 0:
                return number
            left, at, address = left - count, at + count, address + count
        if end - begin > 1:
            for position in range(begin, end):
                copy_row(piece, ids[position] - first, target, places[position])
    return len(ends)
