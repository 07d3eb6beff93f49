"""Device backend: a CUDA device computes; the host's memory or a disk has the blocks that the device does not hold."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from sagann.errors import MissingDependencyError
from sagann.kernels.dialects import Dialect, dialect_for
from sagann.kernels.edge.work import DEVICE_GRAIN
from sagann.plan.beside import Beside
from sagann.runtime.blocks.backend import Backend
from sagann.runtime.blocks.host import Host
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.blocks.transport import BytesOf
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.streams import Streams
from sagann.runtime.device.transport import DeviceTransport
from sagann.runtime.recorder import Recorder

STAGING_BYTES = 256 << 20
"Most bytes of pinned memory for copies of files and pageable memory; a single block may be larger."


class DeviceBackend(Backend):
    """A device, its lanes, and pinned memory."""

    def __init__(self, streams: Streams, dialect: Dialect) -> None:
        self.device = streams.device
        self.memory = PinnedPool(streams)
        self.cutting = dialect if hasattr(dialect, "set_cut") else None
        self._streams, self._staging = streams, PinnedPool(streams, STAGING_BYTES)

    def beside(self, *, on_disk: bool) -> Beside:
        return Beside(copies_beside=True, has_engines=True, grain=DEVICE_GRAIN if self.cutting else None)

    def transport(
        self, sources: Sources, host: Host, bytes_of: BytesOf, timeline: Recorder | None, beside: Beside
    ) -> DeviceTransport:
        return DeviceTransport(sources, host, bytes_of, timeline, streams=self._streams, staging=self._staging)

    def release(self) -> None:
        """Give back the memory that is kept for later: free memory may consist of its fragments alone."""
        self._streams.release()


def backend_of(device: torch.device) -> Backend:
    """The backend that computes on a device: the processor, or a CUDA device.

    Raises:
        MissingDependencyError: a CUDA device needs Triton, which is not installed.
    """
    if device.type == "cpu":
        return Backend()
    if find_spec("triton") is None:
        raise MissingDependencyError("triton", extra="cuda", feature="streaming to a CUDA device")
    return DeviceBackend(Streams(device), dialect_for(device.type, "auto"))
