"""Backend: the device that a streamed model computes on, the memory beside it, and the copies between both.

The executor obeys a plan in the same way on every device. A backend says where blocks lie that are not in use, and how they are copied.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from sagann.errors import MissingDependencyError
from sagann.kernels.edge import Dialect, dialect_for
from sagann.kernels.edge.work import DEVICE_GRAIN
from sagann.kernels.memory import POOL
from sagann.plan.steps import FILES, MEMORY, Beside, Plan
from sagann.runtime.blocks.host import HOST_POOL, DiskHost, Host, RamHost
from sagann.runtime.blocks.residents import BytesOf, Residents
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.device.residents import DeviceResidents
from sagann.runtime.device.streams import PinnedPool, Streams
from sagann.runtime.recorder import Recorder


class Backend:
    """The processor as the place where steps run. Threads of their own read and write files. Other devices are subclasses."""

    device = torch.device("cpu")
    "Device that computes."
    pinned: PinnedPool | None = None
    "Memory of blocks that are not in use and lie in no file; None for ordinary memory."
    cutting: Any = None
    "Dialect that cuts passes over edges into items on the host; None where passes need no cut."

    def beside(self, *, on_disk: bool) -> Beside:
        """What plans must know of the memory where blocks lie that are not in use: files, or the memory that computes."""
        return FILES if on_disk else MEMORY

    def new_host(self, folder: Path | None) -> Host:
        """A new place for blocks that are not in use: a file on the disk of the folder, or memory without one."""
        if folder is None:
            return RamHost(self.pinned)
        # The budget holds for the process: memory that was kept for blocks of another model is not in it.
        HOST_POOL.release()
        return DiskHost(folder)

    def residents(
        self, plan: Plan, sources: Sources, bytes_of: BytesOf, timeline: Recorder | None, beside: Beside
    ) -> Residents:
        """The blocks of one epoch."""
        return Residents(plan, sources, bytes_of, timeline, beside)

    def release(self) -> None:
        """Give back memory that is kept for later use."""
        POOL.release()
        HOST_POOL.release()


STAGING_BYTES = 256 << 20
"Most bytes of pinned memory for copies of files and pageable memory; a single block may be larger."


class DeviceBackend(Backend):
    """A device, its lanes, and pinned memory."""

    def __init__(self, streams: Streams, dialect: Dialect) -> None:
        self.device = streams.device
        self.pinned = PinnedPool(streams)
        self.cutting = dialect if hasattr(dialect, "set_cut") else None
        self._streams, self._staging = streams, PinnedPool(streams, STAGING_BYTES)

    def beside(self, *, on_disk: bool) -> Beside:
        return Beside(copies_beside=True, has_engines=True, grain=DEVICE_GRAIN if self.cutting else None)

    def residents(
        self, plan: Plan, sources: Sources, bytes_of: BytesOf, timeline: Recorder | None, beside: Beside
    ) -> Residents:
        streams, staging = self._streams, self._staging
        return DeviceResidents(plan, sources, bytes_of, timeline, beside, streams=streams, staging=staging)

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
