"""Packed: several tensors in one piece of memory or one file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sagann.kernels.memory import POOL, Pool, allocated_bytes

_ALIGNMENT = 64
_WORD = torch.int64


_Form = tuple[tuple[str, torch.dtype, tuple[int, ...] | None], ...]
_FORMS: dict[_Form, _Form] = {}
"Forms of layouts, each once: blocks by the hundred thousand have a few forms."


class _Place(NamedTuple):
    offset: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Layout:
    """The places of several tensors in one piece of memory.

    Args:
        tensors: tensors by name, of which only shape and type are read.
    """

    __slots__ = ("_counts", "_form", "num_bytes")

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        shapes = [(name, each.dtype, tuple(each.shape)) for name, each in tensors.items()]
        form = tuple((name, dtype, shape[1:] if shape else None) for name, dtype, shape in shapes)
        self._set(form, tuple(shape[0] if shape else 1 for _, _, shape in shapes))

    def _set(self, form: _Form, counts: tuple[int, ...]) -> None:
        self._form, self._counts = _FORMS.setdefault(form, form), counts
        self.num_bytes = sum(_aligned(place.num_bytes) for place in self._places().values())
        "Bytes of all tensors together."

    def _places(self) -> dict[str, _Place]:
        places, offset = {}, 0
        for (name, dtype, row), count in zip(self._form, self._counts, strict=True):
            shape = () if row is None else (count, *row)
            places[name] = place = _Place(offset, math.prod(shape) * dtype.itemsize, shape, dtype)
            offset += _aligned(place.num_bytes)
        return places

    def offset(self, name: str) -> int:
        """First byte of a tensor."""
        return self._places()[name].offset

    def of_rows(self, num_rows: int) -> Layout:
        """The layout of the same tensors with so many rows."""
        layout = Layout({})
        layout._set(self._form, (num_rows,) * len(self._form))
        return layout

    def allocate(self, pool: Pool = POOL) -> Tensor:
        """Uninitialised memory for all tensors: uint8 [num_bytes], of a pool."""
        return pool.empty((self.num_bytes // _WORD.itemsize,), _WORD).view(torch.uint8)

    def views(self, memory: Tensor) -> dict[str, Tensor]:
        """The tensors in a piece of memory, uint8 [num_bytes], by name."""
        return {
            name: memory[place.offset : place.offset + place.num_bytes].view(place.dtype).view(place.shape)
            for name, place in self._places().items()
        }


def packed_bytes(parts: Iterable[int]) -> int:
    """Bytes that packed tensors take together, from the bytes of each."""
    return allocated_bytes(sum(map(_aligned, parts)))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
