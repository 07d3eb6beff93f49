"""Parcels: tensors of the host that travel to a device together, in as few copies as may be.

A copy costs the host the same time however small it is, and a block may have a dozen tensors. Tensors that lie side by side in
memory, as a host packs those of a block, travel in one copy and lie in the same way on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 64
"Alignment of a tensor in its block's memory, in bytes."


class _Place(NamedTuple):
    run: int
    "Which run has the tensor."
    offset: int
    "First byte within the run."
    dtype: torch.dtype
    shape: tuple[int, ...]


class Parcel:
    """Tensors of the host and the runs of bytes that hold them, each of which is copied as one.

    Example:
        >>> packed = torch.arange(32, dtype=torch.float32)
        >>> parcel = Parcel([packed[:16], torch.tensor([7]), packed[16:].view(4, 4)])
        >>> sorted(len(run) for run in parcel.runs)
        [8, 128]
        >>> [tuple(tensor.shape) for tensor in parcel.views([run.clone() for run in parcel.runs])]
        [(16,), (1,), (4, 4)]
    """

    __slots__ = ("_places", "runs")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.runs: list[Tensor] = []
        "Bytes that are copied as one, by address: uint8 [n] each, in the memory of the tensors, or of a copy where one has gaps."
        places: dict[int, _Place] = {}
        sources = [tensor.detach().contiguous() for tensor in tensors]
        begin = end = storage_at = -1
        run: list[int] = []
        for number in sorted(range(len(sources)), key=lambda number: _address(sources[number])):
            source = sources[number]
            storage, address = _address(source)
            follows = storage == storage_at and end <= address < end + ALIGNMENT
            # Each keeps its alignment on the device, where the run begins aligned.
            if not (follows and (address - begin) % ALIGNMENT == 0 and begin % ALIGNMENT == 0):
                self._close(run, sources, begin, end)
                run, storage_at, begin = [], storage, address
            places[number] = _Place(len(self.runs), address - begin, source.dtype, tuple(source.shape))
            run.append(number)
            end = address + source.nbytes
        self._close(run, sources, begin, end)
        self._places = [places[number] for number in range(len(sources))]

    def _close(self, run: Sequence[int], sources: Sequence[Tensor], begin: int, end: int) -> None:
        if run:
            self.runs.append(_bytes_from(sources[run[0]], end - begin))

    def views(self, copies: Sequence[Tensor]) -> Iterator[Tensor]:
        """The tensors, in their order, in copies of the runs: uint8 [n] each, aligned."""
        for place in self._places:
            yield _view(copies[place.run], place.offset, place.dtype, place.shape)


def mapped(content: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """A block's content with every tensor replaced by ``move(tensor)``."""
    if isinstance(content, Tensor):
        return move(content)
    if isinstance(content, Mapping):
        return {name: move(tensor) for name, tensor in content.items()}
    return content.mapped(move)


def tensors_of(content: Any) -> list[Tensor]:
    """The tensors of a block's content, in the order in which :func:`mapped` replaces them."""
    found: list[Tensor] = []

    def noted(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(content, noted)
    return found


def _address(tensor: Tensor) -> tuple[int, int]:
    return tensor.untyped_storage().data_ptr(), tensor.data_ptr()


def _bytes_from(tensor: Tensor, num_bytes: int) -> Tensor:
    """So many bytes of a tensor's storage, from its first number on."""
    return _view(tensor, 0, torch.uint8, (num_bytes,))


def _view(memory: Tensor, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor in the storage of another one, from so many bytes after that one's first number on."""
    # One operator, where slices and views of types and shapes would be three.
    first = (memory.storage_offset() * memory.itemsize + offset) // dtype.itemsize
    view: Tensor = torch.empty(0, dtype=dtype, device=memory.device)
    return view.set_(memory.untyped_storage(), first, shape)  # type: ignore[call-overload]
