"""Backend: what a streamed model computes on, and with which memories and copies.

The executor obeys a plan in the same way everywhere. What differs is here: where blocks lie that are not in use, and how
they are copied.
"""

from __future__ import annotations

from typing import Protocol

import torch

from sagann.kernels.edge.work import Grain
from sagann.kernels.memory import POOL
from sagann.runtime.blocks.host import HOST_POOL, Host, RamHost
from sagann.runtime.blocks.spill import DiskHost, SpillFolder
from sagann.runtime.blocks.transport import BytesOf, DirectTransport, Source, ThreadTransport, Transport
from sagann.runtime.recorder import Recorder


class Backend(Protocol):
    """Where steps run."""

    device: torch.device
    "Device that computes."
    grain: Grain | None
    "Size of the items into which its kernels cut a pass, where the items lie in memory that is planned."
    copies_rows: bool
    "Whether rows of the caller's tensors are copied as they are read, rather than by the transport."

    def shares_memory(self, *, on_disk: bool) -> bool:
        """Whether what is not in use lies in the memory that computes: its cores copy, so that nothing is gained by loading
        ahead, and what is read once, in order, may be read where it lies."""
        ...

    def new_host(self, folder: SpillFolder | None) -> Host:
        """Where blocks may lie that are not in use: files of a folder, or else memory."""
        ...

    def transport(self, source: Source, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> Transport:
        """Copies of one epoch; arguments as of :class:`sagann.runtime.blocks.transport.ThreadTransport`."""
        ...

    def recorder(self, timeline: Recorder | None) -> Recorder | None:
        """What times the steps of one epoch for a timeline."""
        ...

    def release(self) -> None:
        """Give back the memory that is kept for later."""
        ...

    def forget_chunks(self) -> None:
        """Forget what is known of chunks: they are cut anew, and have other numbers then."""
        ...


class CpuBackend:
    """The processor; copies from and to files have threads of their own."""

    device = torch.device("cpu")
    grain: Grain | None = None
    copies_rows = True

    def shares_memory(self, *, on_disk: bool) -> bool:
        """Whether what is not in use lies in memory as well."""
        return not on_disk

    def new_host(self, folder: SpillFolder | None) -> Host:
        """Where blocks may lie that are not in use: files of a folder, or else memory."""
        if folder is None:
            return RamHost()
        # The budget holds for the process: memory that was kept for blocks of another model is not in it.
        HOST_POOL.release()
        return DiskHost(folder)

    def transport(self, source: Source, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> Transport:
        """Copies of one epoch."""
        kind = DirectTransport if host.is_memory else ThreadTransport
        return kind(source, host, bytes_of, timeline)

    def recorder(self, timeline: Recorder | None) -> Recorder | None:
        """The timeline itself."""
        return timeline

    def release(self) -> None:
        """Give back the memory that is kept for later."""
        POOL.release()
        HOST_POOL.release()

    def forget_chunks(self) -> None:
        """Nothing: nothing is known of them."""
