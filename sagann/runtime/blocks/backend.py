"""Backend: the device that a streamed model computes on, the memory beside it, and the copies between both.

The executor obeys a plan in the same way on every device. A backend says where blocks lie that are not in use, and how they
are copied.
"""

from __future__ import annotations

from pathlib import Path

import torch

from sagann.kernels.memory import POOL
from sagann.plan.beside import FILES, MEMORY, Beside
from sagann.runtime.blocks.host import HOST_POOL, Host, RamHost
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.blocks.spill import DiskHost
from sagann.runtime.blocks.transport import BytesOf, ThreadTransport, Transport
from sagann.runtime.recorder import Recorder


class CpuBackend:
    """The processor as the place where steps run. Threads of their own read and write files."""

    device = torch.device("cpu")
    "Device that computes."

    def beside(self, *, on_disk: bool) -> Beside:
        """What plans must know of the memory where blocks lie that are not in use: files, or the memory that computes."""
        return FILES if on_disk else MEMORY

    def new_host(self, folder: Path | None) -> Host:
        """A new place for blocks that are not in use: a file on the disk of the folder, or memory without one."""
        if folder is None:
            return RamHost()
        # The budget holds for the process: memory that was kept for blocks of another model is not in it.
        HOST_POOL.release()
        return DiskHost(folder)

    def transport(
        self, sources: Sources, host: Host, bytes_of: BytesOf, timeline: Recorder | None, beside: Beside
    ) -> Transport:
        """Copies of one epoch."""
        kind = ThreadTransport if beside.copies_beside else Transport
        return kind(sources, host, bytes_of, timeline)

    def recorder(self, timeline: Recorder | None) -> Recorder | None:
        """A recorder of the steps of one epoch, for a timeline."""
        return timeline

    def release(self) -> None:
        """Give back memory that is kept for later use."""
        POOL.release()
        HOST_POOL.release()

    def forget_chunks(self) -> None:
        """Forget results that depend on chunks, of which there are none here: new chunks will have other numbers."""
