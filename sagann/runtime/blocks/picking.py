"""Picking: some rows of a tensor or of a file, by the thread that asks, into memory of their own.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2: the filter that selects useful vertices in the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sagann.kernels.memory import empty

READ_BYTES = 1 << 20
"Of a file, read at a time."
GAP_BYTES = 1 << 17
"Rows in a file that lie closer are read together: a call takes as long as reading about so much more."


def pick_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Copy rows of a tensor.

    Args:
        tensor: [n, ...] on the CPU; it may be mapped from a file, of which only these rows are read.
        rows: integer [m], below n.
    Returns:
        [m, ...], in pooled memory.
    Example:
        >>> pick_rows(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 2])).tolist()
        [[1.0], [3.0]]
    """
    picked = empty((len(rows), *tensor.shape[1:]), tensor.dtype)
    if not tensor.is_contiguous():
        return torch.index_select(tensor, 0, rows.long(), out=picked)
    if picked.numel():
        # PyTorch would have other threads help, which those that compute need. NumPy checks no index in this mode.
        np.take(as_bytes(tensor), rows.numpy(), axis=0, out=as_bytes(picked), mode="clip")
    return picked


def read_rows(fill: Callable[[memoryview, int], None], offset: int, rows: Tensor, into: Tensor) -> None:
    """Read rows of a tensor in a file, those between them only where they lie close.

    Args:
        fill: reads from a position of the file on, until a piece of memory is filled.
        offset: where the tensor begins in the file, in bytes.
        rows: integer [m], ascending.
        into: contiguous [m, ...]; becomes the rows.
    """
    if not into.numel():
        return
    target, at = as_bytes(into), rows.numpy().astype(np.int64)
    row_bytes = target.shape[1]
    piece = np.empty(max(READ_BYTES, row_bytes), np.uint8)
    for first, last in _together(at, max(1, GAP_BYTES // row_bytes), len(piece) // row_bytes):
        begin, end = int(at[first]), int(at[last - 1]) + 1
        read = piece[: (end - begin) * row_bytes]
        fill(read.data, offset + begin * row_bytes)
        found = read.reshape(end - begin, row_bytes)
        np.take(found, at[first:last] - begin, axis=0, out=target[first:last], mode="clip")


def _together(at: np.ndarray, most_apart: int, most_rows: int) -> list[tuple[int, int]]:
    """Ranges of positions of rows that are read at a time: no two further apart, and not too many with what is between."""
    ends = [*(np.flatnonzero(np.diff(at) > most_apart) + 1).tolist(), len(at)]
    found, first = [], 0
    for end in ends:
        while first < end:
            last = int(np.searchsorted(at[first:end], at[first] + most_rows)) + first
            found.append((first, last))
            first = last
    return found


def as_bytes(tensor: Tensor) -> np.ndarray:
    """A contiguous tensor's rows as bytes: uint8 [n, bytes of a row], on the same memory."""
    rows: np.ndarray = tensor.detach().reshape(len(tensor), -1).view(torch.uint8).numpy()
    return rows
