"""Rows of dense and ``torch.sparse_csr`` tensors by index, for features, labels and in-edges; and the narrowest integers for ids.

PyTorch cannot select rows of its CSR layout. A CSR matrix and a CSC topology have the same structure, so
:func:`gather_ranges` selects both rows of a matrix and in-edges of a topology.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Self, TypeGuard

import numpy as np
import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.graph.large_arrays import SLAB_EDGES, empty_array

_INT16_LIMIT, _INT32_LIMIT = 2**15 - 1, 2**31 - 1
SMALLEST_WARNING_BYTES = 64 << 20
"Smallest dense form of sparse features that causes a warning, in bytes."


def is_sparse(features: object) -> TypeGuard[Tensor]:
    """Whether features are a ``torch.sparse_csr`` matrix."""
    return isinstance(features, Tensor) and features.layout == torch.sparse_csr


def take_rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Copy rows of a dense or ``torch.sparse_csr`` tensor, in the order of ``index``, int64 [M]; rows may repeat."""
    if not is_sparse(tensor):
        return tensor[index]
    offsets, positions = gather_ranges(tensor.crow_indices(), index)
    columns = tensor.col_indices()
    return csr_tensor(
        offsets.to(columns.dtype), columns[positions], tensor.values()[positions], num_columns=tensor.shape[1]
    )


def pick_rows(tensor: Tensor, rows: Tensor, into: Tensor) -> Tensor:
    """Copy rows of a dense tensor into the contiguous tensor ``into``, and return it. The copy has no gradient.

    The calling thread copies rows of a contiguous tensor on the CPU alone. If the tensor is mapped from a file, only
    the pages of these rows are read.
    """
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        return torch.index_select(tensor.detach(), 0, rows.to(tensor.device, torch.int64), out=into)
    if into.numel():
        # PyTorch would copy with other threads, which are computing. NumPy checks no index in mode "clip".
        np.take(as_bytes(tensor), rows.numpy(), axis=0, out=as_bytes(into), mode="clip")
    return into


def as_bytes(tensor: Tensor) -> np.ndarray:
    """A contiguous tensor's rows as bytes: uint8 [n, bytes of a row], on the same memory."""
    rows: np.ndarray = as_byte_tensor(tensor).view(len(tensor), -1).numpy()
    return rows


def flat_bytes(tensor: Tensor) -> np.ndarray:
    """A tensor's numbers as bytes, in order: uint8 [bytes], on the same memory if contiguous, else a copy."""
    found: np.ndarray = as_byte_tensor(tensor.contiguous()).numpy()
    return found


def as_byte_tensor(tensor: Tensor) -> Tensor:
    """A contiguous tensor's numbers as bytes, in order: uint8 [bytes], on the same memory, on any device.

    A single number is contiguous whatever its stride, as an expanded one has none. PyTorch's ``view`` wants a stride of 1.
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def row_arrays(rows: Tensor | None) -> tuple[Tensor, ...]:
    """The arrays of features: one of dense features, three of sparse ones, none where there are none."""
    if rows is None:
        return ()
    return (rows.crow_indices(), rows.col_indices(), rows.values()) if is_sparse(rows) else (rows,)


def mapped_rows(rows: Tensor | None, move: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Features with every array replaced by the result of ``move``."""
    arrays = [move(array) for array in row_arrays(rows)]
    if rows is None or not is_sparse(rows):
        return arrays[0] if arrays else None
    return csr_tensor(*arrays, num_columns=rows.shape[1])


def mapped_arrays(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """A tensor, a record of tensors, or a tuple or mapping of these, with every array replaced by the result of ``move``; another value as it is."""
    if isinstance(value, Tensor):
        return mapped_rows(value, move)
    if isinstance(value, Mapping):
        return {name: mapped_arrays(each, move) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped_arrays(each, move) for each in value)
    return value.mapped(move) if hasattr(value, "mapped") else value


class Arrays:
    """Base of frozen dataclasses that hold arrays."""

    __slots__ = ()

    def mapped(self, move: Callable[[Tensor], Tensor]) -> Self:
        """The same record with every array replaced by the result of ``move``, for example a copy on a device."""
        moved = {each.name: mapped_arrays(getattr(self, each.name), move) for each in fields(self)}  # type: ignore[arg-type]
        return replace(self, **moved)  # type: ignore[type-var]


def csr_tensor(offsets: Tensor, columns: Tensor, values: Tensor, *, num_columns: int) -> Tensor:
    """Make a ``torch.sparse_csr`` matrix of arrays that are known to be valid: offsets [N + 1], columns of the same dtype [nnz], values [nnz]."""
    size = len(offsets) - 1, num_columns
    with warnings.catch_warnings():
        # PyTorch warns that the layout may change, and some releases that the check is off, even where that is asked for.
        for message in ("Sparse CSR tensor support is in beta", "Sparse invariant checks are implicitly disabled"):
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        return torch.sparse_csr_tensor(offsets, columns, values, size=size, check_invariants=False)


def csr_slice(rows: Tensor, start: int, stop: int) -> Tensor:
    """The rows ``start`` to ``stop - 1`` of a ``torch.sparse_csr`` matrix; columns and values are views."""
    offsets = rows.crow_indices()[start : stop + 1]
    entries = slice(int(offsets[0]), int(offsets[-1]))
    columns, values = rows.col_indices()[entries], rows.values()[entries]
    return csr_tensor(offsets - offsets[0], columns, values, num_columns=rows.shape[1])


def dense_rows(rows: Tensor) -> Tensor:
    """The dense form of a ``torch.sparse_csr`` matrix [N, F], made slab by slab (:mod:`sagann.graph.large_arrays`)."""
    if rows.requires_grad:
        return rows.to_dense()
    num_rows, width = rows.shape
    dense = empty_array(rows.shape, rows.dtype, rows.device)
    step = max(1, SLAB_EDGES // max(1, width))
    for first in range(0, num_rows, step):
        dense[first : first + step] = csr_slice(rows, first, first + step).to_dense()
    return dense


def made_dense(features: Tensor, reader: str, hint: str) -> Tensor:
    """:func:`dense_rows`, with a warning if the dense form takes much memory: ``reader`` is its subject, ``hint`` its last sentence."""
    dense_bytes = features.numel() * features.dtype.itemsize
    sparse_bytes = sum(part.nbytes for part in (features.crow_indices(), features.col_indices(), features.values()))
    if dense_bytes < max(SMALLEST_WARNING_BYTES, sparse_bytes):
        return dense_rows(features)
    warnings.warn(
        f"{reader} reads dense features: {format_bytes(sparse_bytes)} of sparse ones become {format_bytes(dense_bytes)}. {hint}",
        stacklevel=2,
    )
    return dense_rows(features)


def gather_ranges(offsets: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Find the positions of ranges in the array that ``offsets`` [N + 1] divide, one range after the other.

    ``index``, int64 [M], are the ranges to take. The result is new offsets, int64 [M + 1], and positions, int64 [total length].
    """
    starts = offsets[index].long()
    counts = offsets[index + 1].long() - starts
    new_offsets = offsets_of(counts)
    total = int(new_offsets[-1])
    shifts = torch.repeat_interleave(starts - new_offsets[:-1], counts, output_size=total)
    return new_offsets, shifts.add_(torch.arange(total, device=offsets.device))


def offsets_of(counts: Tensor) -> Tensor:
    """Turn counts [N] into int64 offsets [N + 1] that start at 0."""
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets


def id_dtype(count: int) -> torch.dtype:
    """The narrowest dtype that holds every id, or position, below ``count``: int32 up to 2^31 - 1, else int64."""
    return torch.int32 if count <= _INT32_LIMIT else torch.int64


def local_id_dtype(count: int) -> torch.dtype:
    """The narrowest dtype for ids within an interval: int16 up to 2^15 - 1, else as :func:`id_dtype`."""
    return torch.int16 if count <= _INT16_LIMIT else id_dtype(count)
