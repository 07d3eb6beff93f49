"""Parcel: a trainer's share as one piece of memory and a short text, so that a process of its own can read it from shared memory.

The arrays lie in the piece, each at an aligned place; the text is the rest of the share with the places of its arrays. The receiver's arrays
view the piece: nothing is copied a second time. A checksum over the piece tells a transfer that was cut short.

A text is unpickled by the process that this process has started, from a pipe that no other process holds.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.graph.rows import csr_tensor, is_sparse
from sagann.hybrid.trainer import Share
from sagann.storage.crc32 import crc32

_ALIGNED_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """A share that is to travel."""

    text: bytes
    "The share, with places instead of arrays."
    arrays: tuple[Tensor, ...]
    "Its arrays, contiguous."
    offsets: tuple[int, ...]
    "Where each array begins in a piece of memory, in bytes."
    num_bytes: int
    "Bytes of the piece."

    def write(self, piece: Tensor) -> int:
        """Copy the arrays into a piece of memory, uint8 with at least ``num_bytes``; returns their checksum."""
        for array, offset in zip(self.arrays, self.offsets, strict=True):
            _view(piece, offset, array.dtype, array.shape).copy_(array)
        return checksum(piece, self.num_bytes)


def parcel_of(share: Share) -> Parcel:
    """The parcel of a share whose mini-batch is in the host's memory."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(share)
    return Parcel(
        text=file.getvalue(),
        arrays=tuple(pickler.arrays),
        offsets=tuple(pickler.offsets),
        num_bytes=pickler.end,
    )


def share_in(text: bytes, piece: Tensor) -> Share:
    """The share of a parcel that was written into a piece of memory; its arrays view the piece."""
    share: Share = _Unpickler(io.BytesIO(text), piece).load()
    return share


def checksum(piece: Tensor, num_bytes: int) -> int:
    """The checksum of the first bytes of a piece of memory, with the gaps between its arrays."""
    return crc32(piece[:num_bytes].numpy())


class _Pickler(pickle.Pickler):
    """Pickles a share without its arrays, and notes them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.arrays: list[Tensor] = []
        self.offsets: list[int] = []
        self.end = 0

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        if is_sparse(obj):
            parts = (obj.crow_indices(), obj.col_indices(), obj.values())
            return tuple(map(self._place, parts)), obj.shape[1]
        return (self._place(obj),), None

    def _place(self, array: Tensor) -> tuple[int, torch.dtype, tuple[int, ...]]:
        offset = -(-self.end // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self.arrays.append(array.detach().contiguous())
        self.offsets.append(offset)
        self.end = offset + array.nbytes
        return offset, array.dtype, tuple(array.shape)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, piece: Tensor) -> None:
        super().__init__(file)
        self._piece = piece

    def persistent_load(self, pid: Any) -> Tensor:
        places, num_columns = pid
        arrays = [_view(self._piece, *place) for place in places]
        return arrays[0] if num_columns is None else csr_tensor(*arrays, num_columns=num_columns)


def _view(piece: Tensor, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    return piece[offset : offset + num_bytes].view(dtype).view(shape)
