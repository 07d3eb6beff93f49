"""Device backend: a CUDA device that computes, and the host's memory or a disk for what it does not hold."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from sagann.errors import MissingDependencyError
from sagann.kernels.dialects import Dialect, dialect_for
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.work import DEVICE_GRAIN, Grain
from sagann.plan.sizes import is_by_destination
from sagann.plan.steps import Block
from sagann.runtime.blocks.backend import Backend, CpuBackend
from sagann.runtime.blocks.host import HOST_POOL, Host
from sagann.runtime.blocks.spill import DiskHost, SpillFolder
from sagann.runtime.blocks.transport import BytesOf, Source, Transport
from sagann.runtime.device.hosts import DeviceHost, PinnedHost, StagedHost
from sagann.runtime.device.pinned import PinnedPool
from sagann.runtime.device.recorder import EventRecorder
from sagann.runtime.device.streams import CudaStreams, Streams
from sagann.runtime.device.transport import DeviceTransport
from sagann.runtime.recorder import Recorder

STAGING_BYTES = 256 << 20
"Pinned memory by way of which files and pageable memory are copied, at most; more for a single block that is larger."


class DeviceBackend:
    """A device, its streams, and the pinned memory beside it.

    Args:
        streams: of the device.
        dialect: runs the passes.
    """

    copies_rows = False

    def __init__(self, streams: Streams, dialect: Dialect) -> None:
        self.device = streams.device
        self.grain: Grain | None = DEVICE_GRAIN if hasattr(dialect, "set_cut") else None
        self._streams = streams
        self._cuts = _Cuts(dialect)
        self._pool = PinnedPool(streams)
        self._staging = PinnedPool(streams, STAGING_BYTES)

    @classmethod
    def on(cls, device: torch.device, dialect: str) -> DeviceBackend:
        """The backend of a CUDA device.

        Raises:
            MissingDependencyError: its kernels need Triton.
        """
        if dialect in ("auto", "gpu") and find_spec("triton") is None:
            raise MissingDependencyError("triton", extra="cuda", feature="streaming to a CUDA device")
        return cls(CudaStreams(device), dialect_for(device.type, dialect))

    def shares_memory(self, *, on_disk: bool) -> bool:
        """Whether what is not in use lies on the device: it never does, and copies run beside steps, in lanes of their own."""
        return False

    def new_host(self, folder: SpillFolder | None) -> Host:
        """Where blocks may lie that are not in use: files of a folder, or else pinned memory."""
        HOST_POOL.release()
        if folder is None:
            return PinnedHost(self._streams, self._pool)
        return StagedHost(DiskHost(folder), self._streams, self._staging)

    def transport(self, source: Source, host: Host, bytes_of: BytesOf, timeline: Recorder | None) -> Transport:
        """Copies of one epoch."""
        assert timeline is None or isinstance(timeline, EventRecorder)
        assert isinstance(host, (PinnedHost, StagedHost))
        taken: DeviceHost = host
        return DeviceTransport(
            source,
            taken,
            bytes_of,
            streams=self._streams,
            staging=self._staging,
            cuts=self._cuts,
            timeline=timeline,
        )

    def recorder(self, timeline: Recorder | None) -> Recorder | None:
        """A recorder by the device's events."""
        return None if timeline is None else EventRecorder(self._streams, timeline)

    def release(self) -> None:
        """Give back the memory that is kept for later: fragments of it may be all that is free."""
        self._streams.release()

    def forget_chunks(self) -> None:
        """Forget how the passes over chunks are divided."""
        self._cuts.forget()


def backend_of(device: torch.device) -> Backend:
    """What computes on a device, the processor among them.

    Raises:
        MissingDependencyError: its kernels are not installed.
    """
    return CpuBackend() if device.type == "cpu" else DeviceBackend.on(device, "auto")


class _Cuts:
    """How the passes over each chunk are divided; found on the host when the chunk is first loaded, and kept there.

    Args:
        dialect: of the passes; only that of devices cuts on the host.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect: Any = dialect if hasattr(dialect, "set_cut") else None
        self._known: dict[Block, Any] = {}

    def __call__(self, block: Block, edges: Edges) -> Callable[[Edges, Callable[[Tensor], Tensor]], None] | None:
        """What hands edges on the device their cut."""
        if self._dialect is None:
            return None
        # It follows from the offsets, which forms with and without ids or picked rows have in common.
        at = "dst" if is_by_destination(block.name) else "src"
        known = block._replace(name=at)
        # Another thread may forget meanwhile.
        cut = self._known.get(known)
        if cut is None:
            cut = self._known[known] = self._dialect.cut_of(edges, at)

        def hand_over(moved: Edges, move: Callable[[Tensor], Tensor]) -> None:
            self._dialect.set_cut(moved, at, cut.mapped(move))

        return hand_over

    def forget(self) -> None:
        """Forget what was found."""
        self._known.clear()
