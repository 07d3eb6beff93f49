"""Message: a trainer's share as one piece of memory and a short text, so that a process of its own can read it from shared memory.

The arrays lie in the piece; the text is the rest of the share, with their numbers in their place. The receiver's arrays view the piece:
nothing is copied a second time.

A text is unpickled by the process that this process has started, from a pipe that no other process holds.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sagann.graph.rows import csr_tensor, is_sparse
from sagann.hybrid.trainer import Share
from sagann.kernels.packed import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A share without its arrays."""

    text: bytes
    "The share, with numbers instead of arrays."
    layout: Layout
    "Where the arrays lie in a piece of memory."

    def share_in(self, piece: Tensor) -> Share:
        """The share whose arrays were written into a piece of memory, uint8 with at least ``layout.num_bytes``; they view it."""
        share: Share = _Unpickler(io.BytesIO(self.text), layout_views(self.layout, piece)).load()
        return share


def message_of(share: Share) -> tuple[Message, list[Tensor]]:
    """The message of a share whose mini-batch is in the host's memory, and the arrays that travel with it."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(share)
    return Message(text=file.getvalue(), layout=layout_of(pickler.arrays)), pickler.arrays


def layout_of(tensors: Sequence[Tensor]) -> Layout:
    """The layout of tensors one after another in a piece of memory, which a process shares or a device copies at once."""
    return Layout({str(number): tensor for number, tensor in enumerate(tensors)})


def layout_views(layout: Layout, piece: Tensor) -> tuple[Tensor, ...]:
    """The tensors in a piece of memory, in their order."""
    return tuple(layout.views(piece).values())


class _Pickler(pickle.Pickler):
    """Pickles a share without its arrays, and notes them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.arrays: list[Tensor] = []

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        first = len(self.arrays)
        if is_sparse(obj):
            self.arrays += [obj.crow_indices(), obj.col_indices(), obj.values()]
            return first, obj.shape[1]
        self.arrays.append(obj.detach())
        return first, None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arrays: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._arrays = arrays

    def persistent_load(self, pid: Any) -> Tensor:
        first, num_columns = pid
        if num_columns is None:
            return self._arrays[first]
        return csr_tensor(*self._arrays[first : first + 3], num_columns=num_columns)
