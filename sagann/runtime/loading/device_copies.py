"""DeviceCopies: mini-batches go to a CUDA device beside the training step.

All arrays of a batch are packed into one piece of pinned memory, and travel in one copy, on a stream of their own. With them go the cuts of the
passes over its blocks, which the host makes: a training step that made them would wait for the device at every pass. Features whose hot rows lie
on the device do not travel: after the copy, the same stream gathers them. The stream that computes waits for that stream; no thread of the
host does.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-B: the second stage of the prefetch, from the host's memory to the device's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from sagann.kernels.dialects import Dialect, dialect_for
from sagann.runtime.device.streams import Mark, Streams
from sagann.runtime.loading.minibatch import MiniBatch
from sagann.runtime.tiered.device_features import DeviceFeatures, FarRows

NUM_PIECES = 2
"Pieces of pinned memory: one is filled while the other one is copied."
# Memory of the device is given in pieces that are aligned so.
_ALIGNED_BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A batch on its way to the device."""

    batch: MiniBatch
    "The batch, whose arrays view ``memory``."
    memory: Tensor
    "The memory of the device: uint8 [bytes]."
    mark: Mark
    "Passed when the batch is complete."


class DeviceCopies:
    """Copies batches to a device. :meth:`send` runs on one thread, :meth:`receive` on the thread that computes.

    Args:
        streams: queues of the device.
        features: gives the rows of batches that are sent with far rows.
        dialect: kernels that will run on the blocks; None for the fastest ones of the device.
    """

    def __init__(
        self, streams: Streams, features: DeviceFeatures | None = None, *, dialect: Dialect | None = None
    ) -> None:
        self._streams, self._features = streams, features
        self._dialect: Any = dialect or dialect_for(streams.device.type)
        self._pieces: deque[tuple[Tensor | None, Mark | None]] = deque([(None, None)] * NUM_PIECES)
        "Pieces of pinned memory, each with the mark after its last copy; the one that was used first is the first."

    def send(self, batch: MiniBatch, far: FarRows | None = None) -> Sent:
        """Start the copy of a batch, and the gathering of its features if it comes with far rows; returns before they are done."""
        arrays: list[Tensor] = []

        def keep(array: Tensor) -> Tensor:
            # Edge data that learn travel by themselves, with their gradient.
            arrays.extend([] if array.requires_grad else [array])
            return array

        batch.mapped(keep)
        if far is not None:
            far.mapped(keep)
        cuts = self._cuts(batch)
        for _, _, cut in cuts:
            cut.mapped(keep)
        offsets = [0]
        for array in arrays:
            offsets.append(offsets[-1] + -(-array.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES)
        piece = self._piece(offsets[-1])
        for array, offset in zip(arrays, offsets[:-1], strict=True):
            _view(piece, offset, array).copy_(array)
        gathered_bytes = 0
        if far is not None:
            assert self._features is not None
            gathered_bytes = len(batch.src_ids) * self._features.row_bytes
        with self._streams.on("load"):
            memory = self._streams.empty(offsets[-1] + gathered_bytes)
            self._streams.copy(memory[: offsets[-1]], piece[: offsets[-1]])
            copied = self._streams.mark("load")
        self._pieces.append((piece, copied))
        places = iter(offsets)

        def moved(array: Tensor) -> Tensor:
            return array.to(memory.device) if array.requires_grad else _view(memory, next(places), array)

        sent = Sent(batch=batch.mapped(moved), memory=memory, mark=copied)
        moved_far = None if far is None else far.mapped(moved)
        for number, at, cut in cuts:
            self._dialect.set_cut(sent.batch.blocks[number], at, cut.mapped(moved))
        return sent if moved_far is None else self._gathered(sent, moved_far, memory[offsets[-1] :])

    def _cuts(self, batch: MiniBatch) -> list[tuple[int, str, Any]]:
        """The cuts of the passes over a batch's blocks: number of the block, end, cut. None where the kernels know no cuts."""
        if not hasattr(self._dialect, "set_cut"):
            return []
        return [
            (number, at, self._dialect.cut_of(block, at))
            for number, block in enumerate(batch.blocks)
            for at in ("dst", "src")
        ]

    def _gathered(self, sent: Sent, far: FarRows, memory: Tensor) -> Sent:
        """Gather the features of a batch that is on its way, behind its copy."""
        assert self._features is not None
        ids = sent.batch.src_ids
        rows = memory.view(self._features.dtype).view(len(ids), *self._features.row_shape)
        with self._streams.on("load"):
            self._streams.launch(partial(self._features.gather, ids, far, rows))
            mark = self._streams.mark("load")
        return replace(sent, batch=replace(sent.batch, features=rows), mark=mark)

    def receive(self, sent: Sent) -> MiniBatch:
        """The batch, for work that this thread gives the device from now on."""
        self._streams.wait("compute", sent.mark)
        self._streams.hand_over(sent.memory)
        return sent.batch

    def _piece(self, num_bytes: int) -> Tensor:
        """The piece that was used first, once its copy is done; a larger one if it is too small."""
        piece, mark = self._pieces.popleft()
        if mark is not None:
            self._streams.finish(mark)
        if piece is None or len(piece) < num_bytes:
            # Batches differ in size, and pinning takes far longer than a copy.
            piece = self._streams.pinned(num_bytes + num_bytes // 4)
        return piece


def _view(memory: Tensor, offset: int, like: Tensor) -> Tensor:
    """A tensor of the form of ``like`` in a piece of memory."""
    return memory[offset : offset + like.nbytes].view(like.dtype).view(like.shape)
