"""Backend: the device that a streamed model computes on, the memory beside it, and the copies between both.

The executor obeys a plan in the same way on every device. A backend says where blocks lie that are not in use, and how they
are copied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sagann.kernels.memory import POOL
from sagann.plan.beside import FILES, MEMORY, Beside
from sagann.runtime.blocks.host import HOST_POOL, Host, HostMemory, PooledMemory, RamHost
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.blocks.spill import DiskHost
from sagann.runtime.blocks.transport import BytesOf, Transport
from sagann.runtime.recorder import Recorder


class Backend:
    """The processor as the place where steps run. Threads of their own read and write files. Other devices are subclasses."""

    device = torch.device("cpu")
    "Device that computes."
    memory: HostMemory = PooledMemory()
    "Memory of blocks that are not in use and lie in no file."
    cutting: Any = None
    "Dialect that cuts passes over edges into items on the host; None where passes need no cut."

    def beside(self, *, on_disk: bool) -> Beside:
        """What plans must know of the memory where blocks lie that are not in use: files, or the memory that computes."""
        return FILES if on_disk else MEMORY

    def new_host(self, folder: Path | None) -> Host:
        """A new place for blocks that are not in use: a file on the disk of the folder, or memory without one."""
        if folder is None:
            return RamHost(self.memory)
        # The budget holds for the process: memory that was kept for blocks of another model is not in it.
        HOST_POOL.release()
        return DiskHost(folder)

    def transport(
        self, sources: Sources, host: Host, bytes_of: BytesOf, timeline: Recorder | None, beside: Beside
    ) -> Transport:
        """Copies of one epoch."""
        return Transport(sources, host, bytes_of, timeline, copies_beside=beside.copies_beside)

    def release(self) -> None:
        """Give back memory that is kept for later use."""
        POOL.release()
        HOST_POOL.release()
