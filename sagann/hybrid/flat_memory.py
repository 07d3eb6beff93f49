"""Flat memory: weights or gradients of a model side by side in one piece of memory, which a process shares or a device copies at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

_ALIGNED_BYTES = 16


def flat_views(memory: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
    """Tensors of the forms of others, one after another in a piece of memory, uint8."""
    end = 0
    for each in like:
        begin, end = end, end + _room(each)
        yield memory[begin : begin + each.nbytes].view(each.dtype).view(each.shape)


def flat_bytes(like: Sequence[Tensor]) -> int:
    """Bytes of the memory that :func:`flat_views` needs."""
    return max(_ALIGNED_BYTES, sum(map(_room, like)))


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
