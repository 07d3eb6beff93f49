"""Message: a trainer's share as one piece of memory and a short text, so that a process of its own can read it from shared memory.

The arrays lie in the piece; the text is the rest of the share. The receiver's arrays view the piece: nothing is copied a second time.

A text is unpickled by the process that this process has started, from a pipe that no other process holds.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from sagann.graph.rows import csr_tensor, is_sparse, row_arrays
from sagann.hybrid.trainer import Share
from sagann.kernels.packed import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A share without its arrays."""

    text: bytes
    "The share, pickled: its arrays have no memory, and it has no features."
    num_columns: int | None
    "Width of sparse features; None for other ones."
    num_row_arrays: int
    "Number of the arrays of the features, which come before all others."
    layout: Layout
    "Where the arrays lie in a piece of memory."

    def share_in(self, piece: Tensor) -> Share:
        """The share whose arrays were written into a piece of memory, uint8 with at least ``layout.num_bytes``; they view it."""
        share: Share = pickle.loads(self.text)
        views = layout_views(self.layout, piece)
        rows, others = views[: self.num_row_arrays], iter(views[self.num_row_arrays :])
        features = rows[0] if rows else None
        if self.num_columns is not None:
            features = csr_tensor(*rows, num_columns=self.num_columns)
        return replace(share, batch=replace(share.batch.mapped(lambda _: next(others)), features=features))


def message_of(share: Share) -> tuple[Message, list[Tensor]]:
    """The message of a share whose mini-batch is in the host's memory, and the arrays that travel with it."""
    features = share.batch.features
    arrays = list(row_arrays(features))
    num_row_arrays = len(arrays)

    def without_memory(array: Tensor) -> Tensor:
        arrays.append(array.detach())
        return array.detach().to("meta")

    batch = replace(share.batch, features=None).mapped(without_memory)
    message = Message(
        text=pickle.dumps(replace(share, batch=batch)),
        num_columns=features.shape[1] if is_sparse(features) else None,
        num_row_arrays=num_row_arrays,
        layout=layout_of(arrays),
    )
    return message, arrays


def layout_of(tensors: Sequence[Tensor]) -> Layout:
    """The layout of tensors one after another in a piece of memory, which a process shares or a device copies at once."""
    return Layout({str(number): tensor for number, tensor in enumerate(tensors)})


def layout_views(layout: Layout, piece: Tensor) -> tuple[Tensor, ...]:
    """The tensors in a piece of memory, in their order."""
    return tuple(layout.views(piece).values())
