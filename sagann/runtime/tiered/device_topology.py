"""DeviceTopology: a graph's edges where a CUDA device reads them, for :mod:`sagann.runtime.tiered.device_sampler`.

Each array lies in the device's memory, or in pinned memory of the host, which the device reads in place (zero copy). Within a budget of
bytes, arrays are placed on the device in the order in which sampling pays for them: the offsets, then the sources, then edge data by name.

References:
    Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 4.1 (zero copy). We differ in that
    the edges lie on one device or in the host's memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping

import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.errors import InputError, shown
from sagann.graph.rows import as_byte_tensor
from sagann.graph.topology import Topology
from sagann.kernels.row_gather import RowSources, gather_rows, shift_of
from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.device.pinning import Pinned, PinningError, pin_in_pieces
from sagann.runtime.device.streams import PinnedPool
from sagann.runtime.tiered.hot_size import AUTO_SHARE, HotSize, parse_hot
from sagann.sampling.arguments import require_square

_WHERE = "DeviceTopology, memory"
# Smaller arrays may share a page with another array, and a page cannot be pinned twice. The C library gives larger ones pages of their own.
_SMALL_BYTES = 32 << 20


class DeviceTopology:
    """The edges of a whole graph, for :class:`sagann.runtime.tiered.DeviceSampler`. ``MiniBatches`` takes it as ``sample_on``.

    Args:
        topology: a whole graph's, in the processor's memory. Edge data have no gradient.
        memory: bytes of the device's memory that its arrays may take: a number, a text as "2GiB", or a part of all bytes, as "50%" or 0.5. "auto" takes half of
            what is free. Arrays that find no room are pinned, and read in place: "0%" reads all of them so.
        devices: the first one reads.
    Raises:
        InputError: an argument is wrong, the memory is not free, or memory that should be read in place cannot be pinned.
    """

    def __init__(self, topology: Topology, memory: HotSize = "auto", *, devices: CudaDevices) -> None:
        require_square(topology, where="DeviceTopology, topology")
        self.topology = topology
        self._devices = devices
        self._pinned: list[Pinned] = []
        arrays = {"offsets": topology.indptr, "sources": topology.indices}
        arrays |= {f"edge data '{name}'": rows for name, rows in sorted(topology.edge_data.items())}
        for name, array in arrays.items():
            if array.requires_grad:
                raise InputError(
                    f"{name} learn, and a device that samples has no gradients for them: requires_grad is set "
                    "(in DeviceTopology, topology)",
                    hint="Let the processor sample (sample_on='cpu'), or detach the edge data.",
                )
        left_bytes = self._budget_bytes(memory, sum(array.nbytes for array in arrays.values()))
        self.device_bytes = 0
        "Bytes of the device's memory that the arrays take."
        self.in_place_bytes = 0
        "Bytes of pinned memory that the device reads in place."
        self._read: dict[str, tuple[RowSources, Tensor]] = {}
        "For each array's name, where its rows lie; and the array, for its type and shape."
        for name, array in arrays.items():
            is_on_device = array.nbytes <= left_bytes - self.device_bytes
            data = as_byte_tensor(array.contiguous()).view(len(array), _row_bytes(array))
            if is_on_device:
                self.device_bytes += array.nbytes
                data = devices.empty(0, array.nbytes).view(data.shape).copy_(data)
            else:
                self.in_place_bytes += array.nbytes
                data = self._pinned_rows(name, data)
            self._read[name] = RowSources([data], None, shift_of(len(array)), device=self.device), array
        devices.finish()

    @property
    def device(self) -> torch.device:
        """The device that reads."""
        return self._devices.device(0)

    @property
    def pool(self) -> PinnedPool:
        """Pinned memory for arrays on their way to the device or from it, in the calling thread's stream."""
        return self._devices.pool(0)

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return self.topology.num_dst

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.topology.num_edges

    def offsets(self, positions: Tensor) -> Tensor:
        """The offsets of the in-edges at some positions, int64, for int64 positions on the device; 0 for position -1."""
        return self._rows("offsets", positions)

    def sources(self, edges: Tensor) -> Tensor:
        """The sources of some edges, int32 or int64, for their ids on the device; 0 for id -1."""
        return self._rows("sources", edges)

    def edge_data(self, edges: Tensor) -> Mapping[str, Tensor]:
        """The edge data of some edges, by name, for their ids on the device; zeros for id -1."""
        return {name: self._rows(f"edge data '{name}'", edges) for name in self.topology.edge_data}

    def _rows(self, name: str, ids: Tensor) -> Tensor:
        # Arrays on the device are copies, and those that are read in place are not.
        self.topology.require_unwritten()
        sources, like = self._read[name]
        out = torch.empty((len(ids), *like.shape[1:]), dtype=like.dtype, device=ids.device)
        gather_rows(sources, ids, as_byte_tensor(out).view(len(ids), _row_bytes(like)))
        return out

    def _budget_bytes(self, memory: HotSize, num_bytes: int) -> int:
        """Bytes of the device's memory for the arrays, which have ``num_bytes``."""
        found, room = parse_hot(memory, where=_WHERE), self._devices.room(0)
        if found is None:
            return (room.free_bytes or 0) // AUTO_SHARE
        budget_bytes = int(found * num_bytes) if isinstance(found, float) else found
        room.require(
            min(budget_bytes, num_bytes),
            where=f"{_WHERE}={shown(memory)}",
            hint="Give the topology fewer bytes: what finds no room is read in place.",
        )
        return budget_bytes

    def _pinned_rows(self, name: str, rows: Tensor) -> Tensor:
        """The rows in pinned memory: the same memory, or a copy of a small array."""
        if rows.nbytes < _SMALL_BYTES:
            rows = torch.frombuffer(mmap.mmap(-1, rows.nbytes), dtype=torch.uint8).view(rows.shape).copy_(rows)
        try:
            self._pinned.append(pin_in_pieces(rows.view(-1), self._devices))
        except PinningError as error:
            raise InputError(
                f"{name} of the topology cannot be read in place by {self.device}: "
                f"{format_bytes(rows.nbytes)}: {error.message}",
                hint=f"{error.hint} Or give the topology more of the device's memory, or let the processor sample (sample_on='cpu').",
            ) from error
        return rows


def _row_bytes(array: Tensor) -> int:
    return math.prod(array.shape[1:]) * array.element_size()
