"""DeviceTopology: a graph's edges where a CUDA device reads them, for :mod:`sagann.runtime.tiered.device_sampler`.

Each array lies in the device's memory, or in pinned memory of the host, which the device reads in place (zero copy). Within a budget of
bytes, arrays are placed on the device in the order in which sampling pays for them: the offsets, then the sources, then edge data by name.
Linked devices share them: blocks of 4,096 edges are dealt to them in turn, and offsets of less than 1 GiB lie on each.

References:
    Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 4.1 (zero copy) and 5.5 (edges that are distributed over
    several devices). We differ in that edges may also lie in the host's memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.errors import InputError, shown
from sagann.graph.rows import as_byte_tensor
from sagann.graph.topology import Topology
from sagann.kernels.row_gather import DEALT_BITS, RowSources, dealt_to, gather_rows, num_dealt, shift_of
from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.device.pinning import Pinned, PinningError, pin_in_pieces
from sagann.runtime.device.streams import PinnedPool
from sagann.runtime.tiered.hot_size import AUTO_SHARE, HotSize, parse_hot
from sagann.sampling.arguments import require_square
from sagann.tiering.placement import linked_groups

_WHERE = "DeviceTopology, memory"
# Smaller arrays may share a page with another array, and a page cannot be pinned twice. The C library gives larger ones pages of their own.
_SMALL_BYTES = 32 << 20
_REPLICATED_BYTES = 1 << 30
"Offsets of fewer bytes lie on each of several devices."
_FILL_BYTES = 64 << 20
"Bytes of rows that are copied to a device at a time, at most."


class DeviceTopology:
    """The edges of a whole graph, for :class:`sagann.runtime.tiered.DeviceSampler`. ``MiniBatches`` takes it as ``sample_on``.

    Args:
        topology: a whole graph's, in the processor's memory. Edge data have no gradient.
        memory: bytes of each device's memory that its arrays may take: a number, a text as "2GiB", or a part of all bytes, as "50%" or 0.5. "auto" takes half of
            what is free. Arrays that find no room are pinned, and read in place: "0%" reads all of them so.
        devices: the first one reads; see :meth:`seen_from` for the others.
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
        self._arrays = arrays
        self._reader = 0
        self._sources: list[dict[str, RowSources]] = [{} for _ in range(len(devices))]
        "For each device, where it reads each array, by name."
        self._held: list[dict[str, int]] = [{} for _ in range(len(devices))]
        "For each device, bytes of its memory that each array takes, by name."
        rows = {
            name: as_byte_tensor(array.contiguous()).view(len(array), _row_bytes(array))
            for name, array in arrays.items()
        }
        for group in linked_groups(len(devices), devices.linked):
            self._place(rows, group, memory)
        if in_place := {name for held in self._held for name in rows.keys() - held}:
            pinned = {name: self._pinned_rows(name, data) for name, data in rows.items() if name in in_place}
            for number, sources in enumerate(self._sources):
                for name in pinned.keys() - sources:
                    sources[name] = self._sources_of([pinned[name]], number)
        devices.finish()

    def _place(self, rows: Mapping[str, Tensor], group: Sequence[int], memory: HotSize) -> None:
        """Deal arrays to linked devices, as far as each has room. Small offsets, which are read twice for each vertex, lie on each of them."""
        owners = {
            name: [[number] for number in group]
            if name == "offsets" and data.nbytes < _REPLICATED_BYTES
            else [list(group)]
            for name, data in rows.items()
        }
        shares = {
            name: num_dealt(0, len(owners[name][0]), len(data)) * data.shape[1] for name, data in rows.items()
        }
        whole_bytes = sum(data.nbytes for data in rows.values())
        left_bytes = min(self._budget_bytes(memory, whole_bytes, sum(shares.values()), number) for number in group)
        for name, data in rows.items():
            if shares[name] > left_bytes:
                continue
            left_bytes -= shares[name]
            for dealt in owners[name]:
                parts = [self._copied(data, at, dealt) for at in range(len(dealt))]
                for number, part in zip(dealt, parts, strict=True):
                    self._held[number][name] = part.nbytes
                    self._sources[number][name] = self._sources_of(parts, number)

    def _copied(self, rows: Tensor, at: int, owners: Sequence[int]) -> Tensor:
        """The rows that are dealt to one of several devices, in its memory."""
        count = num_dealt(at, len(owners), len(rows))
        memory = self._devices.empty(owners[at], count * rows.shape[1]).view(count, rows.shape[1])
        step, first = max(1, _FILL_BYTES // max(1, rows.shape[1] << DEALT_BITS)), 0
        for piece in dealt_to(at, len(owners), rows, step=step):
            memory[first : first + len(piece)].copy_(piece)
            first += len(piece)
        return memory

    def _sources_of(self, parts: Sequence[Tensor], number: int) -> RowSources:
        num_rows = sum(map(len, parts))
        return RowSources(parts, None, shift_of(num_rows), device=self._devices.device(number))

    def seen_from(self, number: int) -> DeviceTopology:
        """The same edges for another one of the devices, by its number. Memory is shared."""
        other = copy(self)
        other._reader = number
        return other

    @property
    def device(self) -> torch.device:
        return self._devices.device(self._reader)

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's own memory that the arrays take."""
        return sum(self._held[self._reader].values())

    @property
    def in_place_bytes(self) -> int:
        """Bytes of pinned memory that the device reads in place."""
        held = self._held[self._reader]
        return sum(array.nbytes for name, array in self._arrays.items() if name not in held)

    @property
    def pool(self) -> PinnedPool:
        """Pinned memory for arrays on their way to the device or from it, in the calling thread's stream."""
        return self._devices.pool(self._reader)

    @property
    def num_vertices(self) -> int:
        return self.topology.num_dst

    @property
    def num_edges(self) -> int:
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
        like = self._arrays[name]
        out = torch.empty((len(ids), *like.shape[1:]), dtype=like.dtype, device=ids.device)
        gather_rows(self._sources[self._reader][name], ids, as_byte_tensor(out).view(len(ids), _row_bytes(like)))
        return out

    def _budget_bytes(self, memory: HotSize, whole_bytes: int, most_bytes: int, number: int) -> int:
        """Bytes of a device's memory for the arrays, which have ``whole_bytes``, and take at most ``most_bytes`` of it."""
        found, room = parse_hot(memory, where=_WHERE), self._devices.room(number)
        if found is None:
            return (room.free_bytes or 0) // AUTO_SHARE
        budget_bytes = int(found * whole_bytes) if isinstance(found, float) else found
        room.require(
            min(budget_bytes, most_bytes),
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
