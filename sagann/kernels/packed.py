"""Packed: several tensors in one piece of memory or one file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sagann.kernels.memory import POOL, Pool, allocated_bytes

_ALIGNMENT = 64
_WORD = torch.int64


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Layout:
    """The places of several tensors, of which only shape and type are read, in one piece of memory."""

    __slots__ = ("_places", "num_bytes")

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._places: dict[str, _Place] = {}
        self.num_bytes = 0
        "Number of bytes of all tensors together."
        for name, tensor in tensors.items():
            self._add(name, tuple(tensor.shape), tensor.dtype)

    def _add(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._places[name] = place = _Place(self.num_bytes, shape, dtype)
        self.num_bytes += _aligned(place.num_bytes)

    def offset(self, name: str) -> int:
        """First byte of a tensor."""
        return self._places[name].offset

    def of_rows(self, num_rows: int) -> Layout:
        """The layout of the same tensors with so many rows."""
        layout = Layout({})
        for name, place in self._places.items():
            layout._add(name, (num_rows, *place.shape[1:]), place.dtype)
        return layout

    def allocate(self, pool: Pool = POOL) -> Tensor:
        """Uninitialised memory for all tensors: uint8 [num_bytes], of a pool."""
        return pool.empty((self.num_bytes // _WORD.itemsize,), _WORD).view(torch.uint8)

    def views(self, memory: Tensor) -> dict[str, Tensor]:
        """The tensors in a piece of memory, uint8 [num_bytes], by name."""
        return {
            name: memory[place.offset : place.offset + place.num_bytes].view(place.dtype).view(place.shape)
            for name, place in self._places.items()
        }


def packed_bytes(parts: Iterable[int]) -> int:
    """Bytes that packed tensors take together, from the bytes of each."""
    return allocated_bytes(sum(map(_aligned, parts)))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
