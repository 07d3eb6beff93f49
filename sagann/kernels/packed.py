"""Packed: several tensors in one piece of memory or one file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
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
    """The places of several tensors, of which only shape and type are read, in one piece of memory."""

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
        """The tensors in a piece of memory, uint8 with at least ``num_bytes``, by name. Each counts its own changes in place."""
        return {
            name: _view(memory, place.offset, place.dtype, place.shape) for name, place in self._places().items()
        }


class Region(NamedTuple):
    """Tensors side by side in one piece of memory, which is copied as one; or ``tensors`` where they lie, without a piece."""

    layout: Layout
    memory: Tensor
    "The piece, contiguous: uint8. It may be longer, or end with the last tensor."
    tensors: dict[str, Tensor] | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> Region:
        """A contiguous tensor, without a name, where it lies."""
        return cls(Layout({"": tensor}), _view(tensor, 0, torch.uint8, (tensor.nbytes,)))

    @property
    def bytes(self) -> Tensor:
        """The bytes of the tensors."""
        return self.memory[: self.layout.num_bytes]

    def views(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return self.layout.views(self.memory) if self.tensors is None else self.tensors


def side_by_side(regions: Iterable[Region], memory: Tensor) -> Iterator[Region]:
    """The places of regions one after the other in a piece of memory."""
    begin = 0
    for layout in (region.layout for region in regions):
        yield Region(layout, memory[begin : begin + layout.num_bytes])
        begin += layout.num_bytes


def packed_bytes(parts: Iterable[int]) -> int:
    """Bytes that packed tensors take together, from the bytes of each."""
    return allocated_bytes(sum(map(_aligned, parts)))


def _view(memory: Tensor, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor in the storage of another one, from so many bytes after that one's first number on."""
    assert offset + math.prod(shape) * dtype.itemsize <= memory.nbytes, (
        f"{memory.nbytes} bytes are too few for {shape} of {dtype}"
    )
    # One operator, where slices and views of types and shapes would be three.
    first, rest = divmod(int(memory.storage_offset()) * memory.itemsize + offset, dtype.itemsize)
    assert rest == 0, f"{dtype} begins at a multiple of its bytes"
    view: Tensor = torch.empty(0, dtype=dtype, device=memory.device)
    return view.set_(memory.untyped_storage(), first, shape)  # type: ignore[call-overload]


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
