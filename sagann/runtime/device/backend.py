"""Device backend: a CUDA device computes; the host's memory or a disk has the blocks that the device does not hold."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

from sagann.errors import MissingDependencyError
from sagann.kernels.dialects import Dialect, dialect_for
from sagann.kernels.edge.work import DEVICE_GRAIN
from sagann.plan.beside import Beside
from sagann.runtime.blocks.backend import CpuBackend
from sagann.runtime.blocks.host import HOST_POOL, Host
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.blocks.spill import DiskHost
from sagann.runtime.blocks.transport import BytesOf, Transport
from sagann.runtime.device.chunk_parcels import ChunkParcels
from sagann.runtime.device.hosts import DeviceHost, PinnedHost, StagedHost
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.recorder import EventRecorder
from sagann.runtime.device.streams import Streams
from sagann.runtime.device.transport import DeviceTransport
from sagann.runtime.recorder import Recorder

STAGING_BYTES = 256 << 20
"Most bytes of pinned memory for copies of files and pageable memory; a single block may be larger."


class DeviceBackend:
    """A device, its lanes, and pinned memory. The members are those of :class:`CpuBackend`."""

    def __init__(self, streams: Streams, dialect: Dialect) -> None:
        self.device = streams.device
        grain = DEVICE_GRAIN if hasattr(dialect, "set_cut") else None
        self._beside = Beside(copies_beside=True, has_engines=True, grain=grain)
        self._streams = streams
        self._pool = PinnedPool(streams)
        self._chunks = ChunkParcels(dialect, streams, self._pool)
        self._staging = PinnedPool(streams, STAGING_BYTES)

    def beside(self, *, on_disk: bool) -> Beside:
        return self._beside

    def new_host(self, folder: Path | None) -> Host:
        HOST_POOL.release()
        if folder is None:
            return PinnedHost(self._streams, self._pool)
        return StagedHost(DiskHost(folder), self._streams, self._staging)

    def transport(
        self, sources: Sources, host: Host, bytes_of: BytesOf, timeline: Recorder | None, beside: Beside
    ) -> Transport:
        assert timeline is None or isinstance(timeline, EventRecorder)
        assert isinstance(host, DeviceHost)
        return DeviceTransport(
            sources,
            host,
            bytes_of,
            streams=self._streams,
            staging=self._staging,
            chunks=self._chunks,
            timeline=timeline,
        )

    def recorder(self, timeline: Recorder | None) -> Recorder | None:
        return None if timeline is None else EventRecorder(self._streams, timeline)

    def release(self) -> None:
        """Give back the memory that is kept for later: free memory may consist of its fragments alone."""
        self._streams.release()

    def forget_chunks(self) -> None:
        self._chunks.forget()


Backend = CpuBackend | DeviceBackend
"The device that a streamed model computes on, the memory beside it, and the copies between both."


def backend_of(device: torch.device) -> Backend:
    """The backend that computes on a device: the processor, or a CUDA device.

    Raises:
        MissingDependencyError: a CUDA device needs Triton, which is not installed.
    """
    if device.type == "cpu":
        return CpuBackend()
    if find_spec("triton") is None:
        raise MissingDependencyError("triton", extra="cuda", feature="streaming to a CUDA device")
    return DeviceBackend(Streams(device), dialect_for(device.type, "auto"))
