"""DeviceCopies: mini-batches go to a CUDA device beside the training step.

Rows of features are made in pinned memory (:meth:`DeviceCopies.making_rows`), from where the device copies them. The other arrays of a batch are
packed into one piece of pinned memory, and travel in one copy, on a stream of their own, with the cuts of the passes over its blocks: a
training step that made them would wait for the device at every pass. Features whose hot rows lie on the device are gathered there after the
copy. Blocks that the device has sampled do not travel. The stream that computes waits for that stream; no thread of the host does.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-B: the second stage of the prefetch, from the host's memory to the device's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import prod
from typing import Any

import torch
from torch import Tensor

from sagann.graph.large_arrays import made_by
from sagann.kernels.edge import Dialect, dialect_for
from sagann.kernels.packed import Layout, Region, side_by_side
from sagann.runtime.device.streams import Mark, PinnedPool, Streams
from sagann.runtime.tiered.device_features import DeviceFeatures, FarRows
from sagann.sampling import MiniBatch

# Batches differ in size, and pinning takes far longer than a copy.
_MOST_TIMES = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A batch on its way to the device."""

    batch: MiniBatch
    "The batch, whose arrays view ``memory``."
    memory: Tensor
    sampled: list[Tensor]
    "Arrays of the batch that have memory of their own: the device has sampled them."
    mark: Mark
    "Passed when the batch is complete."


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A batch in pinned memory."""

    batch: MiniBatch
    "The batch, as it was packed."
    far: FarRows | None
    "Rows that no device can read, if features are to be gathered."
    cuts: list[tuple[int, str, Any]]
    "Cuts of the passes over blocks: number of the block, end, cut."
    regions: list[Region]
    "The copies that bring the batch to the device. The arrays of batch, far rows and cuts have numbers, in the order of ``mapped``."
    pieces: list[Tensor]
    "Pinned memory that is free when the copies are done."


class DeviceCopies:
    """Copies batches to a device. :meth:`pack` runs on any thread, :meth:`send` on one, :meth:`receive` on the thread that computes.

    ``features`` give the rows of batches that are sent with far rows; ``pool`` is pinned memory, which may outlive this object.
    """

    def __init__(
        self,
        streams: Streams,
        features: DeviceFeatures | None = None,
        *,
        pool: PinnedPool | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        self._streams, self.features = streams, features
        self._pool = pool or pinned_pool(streams)
        self._dialect: Any = dialect or dialect_for(streams.device.type)
        self._lent: dict[int, Tensor] = {}
        "Pinned memory of rows that were not packed yet, by address."

    def making_rows(self) -> AbstractContextManager[None]:
        """Inside the ``with`` block, feature stores make rows in pinned memory, on any thread. Such rows are packed once."""
        return made_by(self._rows)

    def _rows(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        num_bytes = prod(shape) * dtype.itemsize
        if not num_bytes:
            return torch.empty(shape, dtype=dtype)
        piece = self._pool.take(num_bytes)
        self._lent[piece.data_ptr()] = piece
        return piece[:num_bytes].view(dtype).view(*shape)

    def withdraw(self) -> None:
        """Take back the memory of rows that will not be packed."""
        while self._lent:
            self._pool.give(self._lent.popitem()[1])

    def pack(self, batch: MiniBatch, far: FarRows | None = None) -> Packed:
        """Pack a batch, with the rows that no device can read if its features are to be gathered, for :meth:`send`; on any thread."""
        arrays: list[Tensor] = []

        def keep(array: Tensor) -> Tensor:
            arrays.extend([] if _is_apart(array) else [array])
            return array

        # Before the arrays are counted: a cut may make the out-edges of a block.
        cuts = self._cuts(batch)
        batch.mapped(keep)
        if far is not None:
            far.mapped(keep)
        for _, _, cut in cuts:
            cut.mapped(keep)
        regions, pieces, packed = list[Region](), list[Tensor](), dict[str, Tensor]()
        for number, array in enumerate(arrays):
            if (lent := self._lent.pop(array.data_ptr(), None)) is None:
                packed[str(number)] = array
            else:
                regions.append(Region(Layout({str(number): array}), lent))
                pieces.append(lent)
        layout = Layout(packed)
        pieces.append(self._pool.take(layout.num_bytes))
        regions.append(Region(layout, pieces[-1]))
        for name, place in regions[-1].views().items():
            _fill(place, packed[name])
        return Packed(batch=batch, far=far, cuts=cuts, regions=regions, pieces=pieces)

    def send(self, packed: Packed) -> Sent:
        """Start the copy of a batch, and the gathering of its features if it comes with far rows; returns before they are done."""
        batch, far = packed.batch, packed.far
        gathered_bytes = 0
        if far is not None:
            assert self.features is not None
            gathered_bytes = len(batch.src_ids) * self.features.row_bytes
        num_bytes = sum(region.layout.num_bytes for region in packed.regions)
        with self._streams.on("load"):
            memory = self._streams.empty(num_bytes + gathered_bytes)
            views: dict[str, Tensor] = {}
            for region, copy in zip(packed.regions, side_by_side(packed.regions, memory), strict=True):
                self._streams.copy(copy.bytes, region.bytes)
                views |= copy.views()
            copied = self._streams.mark("load")
        for piece in packed.pieces:
            self._pool.give(piece, copied)
        numbers, sampled = count(), list[Tensor]()

        def moved(array: Tensor) -> Tensor:
            if not _is_apart(array):
                return views[str(next(numbers))]
            if not array.requires_grad:
                sampled.append(array)
            return array.to(memory.device)

        sent = Sent(batch=batch.mapped(moved), memory=memory, sampled=sampled, mark=copied)
        moved_far = None if far is None else far.mapped(moved)
        for number, at, cut in packed.cuts:
            self._dialect.set_cut(sent.batch.blocks[number], at, cut.mapped(moved))
        if moved_far is None:
            return sent
        # The features are gathered behind the copy.
        assert self.features is not None
        ids = sent.batch.src_ids
        rows = memory[num_bytes:].view(self.features.dtype).view(len(ids), *self.features.row_shape)
        with self._streams.on("load"):
            self._streams.launch(partial(self.features.gather, ids, moved_far, rows))
            mark = self._streams.mark("load")
        return replace(sent, batch=replace(sent.batch, features=rows), mark=mark)

    def _cuts(self, batch: MiniBatch) -> list[tuple[int, str, Any]]:
        """The cuts of the passes over a batch's blocks: number of the block, end, cut. None where the kernels know no cuts."""
        if not hasattr(self._dialect, "set_cut"):
            return []
        # Blocks that the device samples are made in this lane.
        with self._streams.on("load"):
            return [
                (number, at, self._dialect.cut_of(block, at))
                for number, block in enumerate(batch.blocks)
                for at in ("dst", "src")
            ]

    def receive(self, sent: Sent) -> MiniBatch:
        """The batch, for work that this thread gives the device from now on."""
        self._streams.wait("compute", sent.mark)
        for memory in (sent.memory, *sent.sampled):
            self._streams.hand_over(memory)
        return sent.batch


def pinned_pool(streams: Streams) -> PinnedPool:
    """Pinned memory for batches, which differ in size."""
    return PinnedPool(streams, most_times=_MOST_TIMES)


def _is_apart(array: Tensor) -> bool:
    """Whether an array is not packed: it lies on the device, or it learns and travels by itself, with its gradient."""
    return array.requires_grad or array.device.type != "cpu"


def _fill(place: Tensor, array: Tensor) -> None:
    if array.is_contiguous():
        # Few of PyTorch's calls: they hold Python's lock, which the thread that trains waits for.
        ctypes.memmove(place.data_ptr(), array.data_ptr(), array.nbytes)
    else:
        place.copy_(array)
