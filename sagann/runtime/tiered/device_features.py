"""DeviceFeatures: a feature store whose hot rows lie on devices, in front of features in the host's memory or on its disk.

One index has the place of each row: on a device, interleaved over linked devices or replicated on each (:mod:`sagann.tiering.placement`);
in pinned memory of the host, which devices read in place (zero copy): rows of a tensor in memory, or of a :class:`TieredFeatures` with the
cache "static"; or nowhere that a device can read. The processor gathers these *far* rows of a batch, and they travel with it.

A batch is served in two parts. :meth:`DeviceFeatures.pick` runs on the processor, ahead of training, and reads far rows; where no row is
far it does nothing. :meth:`DeviceFeatures.gather` queues one kernel on the device, which reads all other rows from where they are, and
counts the rows of each tier. The host reads the counts when it is asked for them.

Several devices are tested as simulated ones. `bench/results/cold_bytes_device.md` has the rate at which a device reads rows in place.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.checks import require_ids
from sagann.graph.feature_store import Features
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import Arrays, as_byte_tensor, as_bytes
from sagann.jit import Array
from sagann.kernels.row_gather import NOWHERE, RowSources, gather_rows, place_dtype, shift_of
from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.device.pinning import Pinned, PinningError, pin_in_pieces
from sagann.runtime.tiered.cold_rows import StoreInTiers, checked_ids
from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.runtime.tiered.features import TieredFeatures
from sagann.runtime.tiered.hot_size import HotSize, hot_rows
from sagann.storage.mapped import MappedRows, positioned
from sagann.tiering.placement import LinkedGroup, place_hot_rows

_IDS = "DeviceFeatures, ids"
_FILL_BYTES = 64 << 20
"Largest number of bytes of hot rows that are read at a time when a store is made."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FarRows(Arrays):
    """The rows of a batch that no device can read."""

    positions: Tensor
    "int64 [m]: positions of the rows in the batch."
    rows: Tensor


class DeviceFeatures(StoreInTiers):
    """The rows of features for a device that computes. Every row has the bits that it has in ``features``.

    ``rows`` gives tensors on the device; ``slice`` gives tensors on the processor, as other stores do. Several threads may ask at once. Ids that
    lie on the device are not waited for: an id of no vertex gives a row of zeros, and is an error of the next look at the counters.
    ``MiniBatches`` takes the store as ``Graph.features``, if its batches go to the same device.

    Args:
        features: rows of all vertices, on the processor: a tensor, or a feature store. A store is not told of batches ahead.
        hot: size of the hot tier of each device. A number of bytes, or a text as "2GiB", is the memory for hot rows and for the index. A
            float, or a text as "10%", is a part of the rows. "auto" takes half of what is free on the device.
        devices: the devices; the first one computes.
        replicated: part of the hot tier for the hottest rows, which each of several linked devices holds; 0 to 1.
        hottest: int64 [n], distinct ids of vertices, the hottest first; only these can be hot. None stands for the order of the ids, as
            after a reordering by score.
    Warns:
        RuntimeWarning: the driver does not pin the memory, so its rows are far rows.
    Raises:
        InputError: an argument is wrong, the features are sparse, on a device or require a gradient, or the memory is not free.
        DatasetError: the file ends too early, or cannot be read.
    References:
        Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 4.
    """

    def __init__(
        self,
        features: Features,
        hot: HotSize = "auto",
        *,
        devices: CudaDevices,
        replicated: float = 0.0,
        hottest: Tensor | None = None,
    ) -> None:
        super().__init__(features, hottest)
        self._devices = devices
        self._shift = shift_of(self.num_rows)
        # The devices, and the host.
        self._place_dtype = place_dtype(len(devices) + 1, self._shift)
        num_slots = [
            hot_rows(
                hot,
                num_rows=self.num_rows,
                row_bytes=self.row_bytes,
                state_bytes=lambda slots: self._index_bytes,
                room=devices.room(number),
            )
            for number in range(len(devices))
        ]
        most = self.num_rows if self._order is None else len(self._order)
        self._groups = place_hot_rows(num_slots, num_rows=most, replicated=replicated, linked=devices.linked)
        self._hot = [self._filled(number) for number in range(len(devices))]
        self._pinned: Pinned | None = None
        self._host_ids, self._host = self._rows_in_place()
        devices.finish()
        self._look_from(0)

    @property
    def device(self) -> torch.device:
        """The device that reads, and that :meth:`rows` gives tensors on."""
        return self._devices.device(self._reader)

    @property
    def num_hot_rows(self) -> int:
        """Number of rows that the device reads from its own memory or that of its peers."""
        return self._group(self._reader).num_hot_rows

    @property
    def hot_bytes(self) -> int:
        """Bytes of the device's own memory: of the hot rows there, and of the index."""
        return self._hot[self._reader].nbytes + self._index_bytes

    @property
    def has_far_rows(self) -> bool:
        """Whether some rows are read by the processor, which must know the ids of a batch."""
        return self._is_far is not None

    @property
    def is_in_place(self) -> bool:
        """Whether the device reads rows of the host's memory in place."""
        return self._pinned is not None

    def seen_from(self, number: int) -> DeviceFeatures:
        """The same rows for another one of the devices, by its number. Memory is shared; index and counters are new."""
        other = copy(self)
        other._look_from(number)
        return other

    def rows(self, ids: Tensor) -> Tensor:
        """Copy the rows of some vertices to the device: [n, *row_shape], for int64 ids [n] on the processor or the device, in their order.

        Work is queued on the device's current stream. The host waits for the device only for ids that lie there, where some rows are far.

        Raises:
            InputError: an id on the processor is no vertex.
            DatasetError: the file ends too early, or cannot be read.
        """
        pool = self._devices.pool(self._reader)
        on_host = ids.device.type == "cpu"
        if on_host and not self.has_far_rows:
            require_ids(ids, self.num_rows, where=_IDS)
        far = self.pick(ids if on_host or not self.has_far_rows else pool.read(ids))
        memory = self._devices.empty(self._reader, len(ids) * self.row_bytes)
        out = memory.view(self.dtype).view(len(ids), *self.row_shape)
        self.gather(pool.bring(ids) if on_host else ids, far.mapped(pool.bring) if len(far.positions) else far, out)
        return out

    def pick(self, ids: Tensor) -> FarRows:
        """Read the far rows of a batch; the part of the work that the processor does. Ids may lie on the device where no row is far.

        Raises:
            InputError: an id is no vertex, where some rows are far.
            DatasetError: the file ends too early, or cannot be read.
        """
        if self._is_far is None:
            return self._no_far
        found = checked_ids(ids, self.num_rows, _IDS)
        positions = self._is_far.take(found).nonzero()[0]
        rows = empty_array((len(positions), *self.row_shape), self.dtype, torch.device("cpu"))
        num_reads = read_bytes = 0
        if rows.numel():
            reads = self._cold.read(found[positions], as_bytes(rows), np.arange(len(positions)))
            num_reads, read_bytes = reads.num_reads, reads.num_bytes
        with self._lock:
            self._num_reads += num_reads
            self._read_bytes += read_bytes
        return FarRows(positions=torch.from_numpy(positions), rows=rows)

    def gather(self, ids: Tensor, far: FarRows, out: Tensor) -> None:
        """Copy the rows of a batch to ``out``; work is queued on the device's current stream.

        ``ids`` are those of :meth:`pick`, and ``far`` is what it returned; all three lie on the device.
        """
        if not out.numel():
            return
        gather_rows(self._sources, ids, as_byte_tensor(out).view(len(out), -1), self._counts)
        if len(far.positions):
            out.index_copy_(0, far.positions, far.rows)

    def traffic(self) -> Traffic:
        """Rows and bytes so far: hot are those of devices, cold are all others. Reads are those that this store does of a file.

        Waits for the devices.

        Raises:
            InputError: an id on the device was no vertex.
        """
        far, *devices, in_place = self._rows_by_source()
        with self._lock:
            num_reads, read_bytes = self._num_reads, self._read_bytes
        return Traffic(
            hot=TierCounts.of(sum(devices), self.row_bytes),
            cold=TierCounts.of(far + in_place, self.row_bytes),
            cold_reads=num_reads,
            cold_read_bytes=read_bytes,
        )

    def tiers(self) -> Mapping[str, TierCounts]:
        """Rows and bytes so far by tier: 'device', 'peer N' for each other device, 'in place' in the host's memory, and 'far'.

        Waits for the devices, as :meth:`traffic` does.
        """
        far, *devices, in_place = self._rows_by_source()
        own = self._reader
        peers = {f"peer {number}": rows for number, rows in enumerate(devices) if number != own}
        found = {"device": devices[own], **peers, "in place": in_place, "far": far}
        return {tier: TierCounts.of(rows, self.row_bytes) for tier, rows in found.items()}

    def _rows_by_source(self) -> list[int]:
        """Rows so far: far ones, those of each device, and those of the host that are read in place."""
        self._devices.finish()
        unknown, *rows = self._counts.sum(0).tolist()
        if unknown:
            raise InputError(
                f"vertex ids out of range: {unknown} of the ids on '{self.device}', but there are {self.num_rows} vertices, numbered from "
                f"0 (in {_IDS})",
                hint="Number the vertices from 0 without gaps; ids on the processor are checked before they are used.",
            )
        return rows[: len(self._devices) + 2]

    @property
    def _index_bytes(self) -> int:
        return self.num_rows * self._place_dtype.itemsize

    def _group(self, number: int) -> LinkedGroup:
        return next(group for group in self._groups if number in group.devices)

    def _ids_of(self, ranks: Array) -> Array:
        return ranks if self._order is None else self._order[ranks]

    def _filled(self, number: int) -> Tensor:
        """The hot rows of a device: uint8 [num_slots, bytes of a row]."""
        ids = self._ids_of(self._group(number).held_by(number))
        hot = self._devices.empty(number, len(ids) * self.row_bytes).view(len(ids), self.row_bytes)
        step = max(1, _FILL_BYTES // max(1, self.row_bytes))
        staging = np.empty((min(step, len(ids)), self.row_bytes), np.uint8)
        for first in range(0, len(ids) if self.row_bytes else 0, step):
            part = ids[first : first + step]
            self._cold.read(part, staging, np.arange(len(part)))
            hot[first : first + len(part)].copy_(torch.from_numpy(staging[: len(part)]))
        return hot

    def _rows_in_place(self) -> tuple[Array, Tensor]:
        """Ids and bytes of the rows in the host's memory that devices read in place, after it is pinned; none where it cannot be."""
        ids, rows = _rows_in_memory(self._features)
        if rows.numel():
            try:
                self._pinned = pin_in_pieces(rows.view(-1), self._devices)
            except PinningError as error:
                warnings.warn(
                    f"The features cannot be read in place by {self._devices.device(0)}: {error.message}. Rows that are "
                    "not hot are gathered by the processor and copied through a pinned staging buffer instead, which takes the "
                    f"processor's time and memory bandwidth. {error.hint}",
                    RuntimeWarning,
                    stacklevel=3,
                )
            else:
                return ids, rows
        return np.empty(0, np.int64), torch.empty((0, self.row_bytes), dtype=torch.uint8)

    def _look_from(self, number: int) -> None:
        """Make the index and the counters of the device that reads."""
        self._reader = number
        owners, slots = self._group(number).seen_from(number)
        places = torch.full((self.num_rows,), NOWHERE, dtype=self._place_dtype)
        found: Array = places.numpy()
        found[self._host_ids] = (len(self._devices) << self._shift) + np.arange(len(self._host_ids))
        found[self._ids_of(np.arange(len(owners)))] = (owners << self._shift) + slots
        is_far = found == NOWHERE
        self._is_far: Array | None = is_far if is_far.any() else None
        "Whether each row is far; None where none is."
        nothing = torch.empty(0, *self.row_shape, dtype=self.dtype)
        self._no_far = FarRows(positions=torch.empty(0, dtype=torch.int64), rows=nothing)
        self._sources = RowSources([*self._hot, self._host], places.to(self.device), self._shift)
        self._lock = Lock()
        self._counts = self._sources.new_counts()
        self._num_reads = self._read_bytes = 0


def _rows_in_memory(features: Features) -> tuple[Array, Tensor]:
    """Ids and bytes of rows that stay at one address of the host's memory: int64 [n], and uint8 [n, bytes of a row]."""
    if isinstance(features, TieredFeatures) and (fixed := features.fixed_rows()) is not None:
        return fixed[0].astype(np.int64), torch.from_numpy(fixed[1])
    # Pages of a mapped file would all have to be in memory.
    is_mapped = isinstance(positioned(features), MappedRows)
    if isinstance(features, Tensor) and not is_mapped and features.numel() and features.is_contiguous():
        return np.arange(len(features)), as_byte_tensor(features).view(len(features), -1)
    return np.empty(0, np.int64), torch.empty((0, 0), dtype=torch.uint8)


def require_same_device(store: DeviceFeatures, device: torch.device, where: str) -> None:
    """Refuse batches that go to another device than the store's rows."""
    if store.device != device:
        raise InputError(
            f"features are read by another device: batches go to '{device}', the rows to '{store.device}' (in "
            f"{where})",
            hint=f"Pass device='{store.device}', or a store of that device.",
        )
