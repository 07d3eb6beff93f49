"""Message: a trainer's share as one piece of memory and a short text, so that a process of its own can read it from shared memory.

The arrays lie in the piece; the text is the rest of the share. The receiver's arrays view the piece: nothing is copied a second time.

A text is unpickled by the process that this process has started, from a pipe that no other process holds.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from torch import Tensor

from sagann.graph.rows import csr_tensor, is_sparse, row_arrays
from sagann.hybrid.trainer import Share
from sagann.kernels.packed import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A share without its arrays."""

    text: bytes
    "The share, pickled, with a number in the place of each array."
    layout: Layout
    "Where the arrays lie in a piece of memory."

    def share_in(self, piece: Tensor) -> Share:
        """The share whose arrays were written into a piece of memory, uint8 with at least ``layout.num_bytes``; they view it."""
        share: Share = _Unpickler(self.text, layout_views(self.layout, piece)).load()
        return share


def message_of(share: Share) -> tuple[Message, list[Tensor]]:
    """The message of a share whose mini-batch is in the host's memory, and the arrays that travel with it."""
    text = BytesIO()
    pickler = _Pickler(text)
    pickler.dump(share)
    return Message(text=text.getvalue(), layout=layout_of(pickler.arrays)), pickler.arrays


class _Pickler(pickle.Pickler):
    """Collects the arrays, and writes their numbers."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.arrays: list[Tensor] = []

    def persistent_id(self, obj: object) -> Any:
        if not isinstance(obj, Tensor):
            return None
        first = len(self.arrays)
        self.arrays += [array.detach() for array in row_arrays(obj)]
        return first, obj.shape[1] if is_sparse(obj) else None


class _Unpickler(pickle.Unpickler):
    """Puts arrays in the places of their numbers."""

    def __init__(self, text: bytes, arrays: Sequence[Tensor]) -> None:
        super().__init__(BytesIO(text))
        self._arrays = arrays

    def persistent_load(self, pid: Any) -> Tensor:
        first, num_columns = pid
        if num_columns is None:
            return self._arrays[first]
        return csr_tensor(*self._arrays[first : first + 3], num_columns=num_columns)


def layout_of(tensors: Sequence[Tensor]) -> Layout:
    """The layout of tensors one after another in a piece of memory, which a process shares or a device copies at once."""
    return Layout({str(number): tensor for number, tensor in enumerate(tensors)})


def layout_views(layout: Layout, piece: Tensor) -> tuple[Tensor, ...]:
    """The tensors in a piece of memory, in their order."""
    return tuple(layout.views(piece).values())
