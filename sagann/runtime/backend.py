"""Backend: the device that a streamed model computes on, the memory beside it, and the copies between both.

The executor obeys a plan in the same way on every device. A backend says where blocks lie that are not in use, and how they are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sagann.errors import MissingDependencyError
from sagann.kernels.edge import Dialect, dialect_for
from sagann.kernels.edge.work import DEVICE_GRAIN
from sagann.kernels.memory import POOL
from sagann.kernels.packed import Region
from sagann.machines import published_machine
from sagann.plan.dealing import EACH, Before, Route
from sagann.plan.steps import FILES, MEMORY, Beside, Plan
from sagann.runtime.blocks.host import DiskHost, Host, RamHost
from sagann.runtime.blocks.residents import BytesOf, Residents
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.device.pinning import Pinned, PinningError, pin_in_pieces
from sagann.runtime.device.residents import DeviceResidents, Lanes
from sagann.runtime.device.segments import SegmentStreams
from sagann.runtime.device.streams import PinnedPool
from sagann.runtime.recorder import Recorder


class Backend:
    """The processor as the place where steps run. Threads of their own read and write files. Other devices are subclasses."""

    devices: Sequence[torch.device] = (torch.device("cpu"),)
    "Devices that compute, each of which owns a part of the steps and blocks (:mod:`sagann.plan.steps`)."
    route: Route = EACH
    "Way by which blocks reach several devices."
    pinned: PinnedPool | None = None
    "Memory of blocks that are not in use and lie in no file; None for ordinary memory."
    cutting: Any = None
    "Dialect that cuts passes over edges into items on the host; None where passes need no cut."

    @property
    def device(self) -> torch.device:
        """The first device, on which the caller's parameters and the result lie."""
        return self.devices[0]

    @property
    def is_recording(self) -> bool:
        """Whether what this thread queues is recorded, and not run."""
        return False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"device{number}" for number in range(len(self.devices)))

    def beside(self, *, on_disk: bool) -> Beside:
        """What plans must know of the memory where blocks lie that are not in use: files, or the memory that computes."""
        return FILES if on_disk else MEMORY

    def new_host(self, folder: Path | None) -> Host:
        """A new place for blocks that are not in use: a file on the disk of the folder, or memory without one."""
        if folder is None:
            return RamHost(self.pinned)
        return DiskHost(folder)

    def lasting_host(self) -> Host:
        """A new place in memory, which keeps its memory from epoch to epoch."""
        return RamHost(self.pinned, lasts=True)

    def pin(self, features: Tensor) -> str | None:
        """Let devices read features where they lie, as long as no others are pinned; why they cannot, or None."""
        return None

    def residents(
        self, plan: Plan, sources: Sources, bytes_of: BytesOf, timeline: Recorder | None, beside: Beside
    ) -> Residents:
        return Residents(plan, sources, bytes_of, timeline, beside)

    def release(self) -> None:
        POOL.release()


STAGING_BYTES = 256 << 20
"Most bytes of pinned memory for copies of files and pageable memory; a single block may be larger."


class DeviceBackend(Backend):
    """Devices, their lanes, and pinned memory. Without a ``driver``, features are not pinned."""

    def __init__(
        self,
        lanes: Sequence[SegmentStreams],
        dialect: Dialect,
        route: Route = EACH,
        driver: CudaDevices | None = None,
    ) -> None:
        self.devices, self.route = [streams.device for streams in lanes], route
        self.pinned = PinnedPool(lanes[0], beside=lanes[1:])
        self.cutting = dialect if hasattr(dialect, "set_cut") else None
        self._lanes = [Lanes(streams, PinnedPool(streams, STAGING_BYTES)) for streams in lanes]
        self._driver = driver
        # Features, and what keeps them pinned, or why they are not.
        self._pinned_features: tuple[Tensor, Pinned | str] | None = None

    @property
    def is_recording(self) -> bool:
        return self._lanes[0].streams.recording is not None

    def pin(self, features: Tensor) -> str | None:
        if self._pinned_features is None or self._pinned_features[0] is not features:
            self._pinned_features = features, self._pinned(features)
        found = self._pinned_features[1]
        return found if isinstance(found, str) else None

    def _pinned(self, features: Tensor) -> Pinned | str:
        if self._driver is None:
            return "no driver pins them"
        if not features.is_contiguous():
            return "they are not contiguous"
        try:
            return pin_in_pieces(Region.of(features.detach()).memory, self._driver)
        except PinningError as error:
            return error.message

    def beside(self, *, on_disk: bool) -> Beside:
        # Epochs are recorded unless blocks lie in files.
        machine = None if on_disk else published_machine("h100")
        grain = DEVICE_GRAIN if self.cutting else None
        return Beside(copies_beside=True, has_engines=True, grain=grain, machine=machine)

    def residents(
        self, plan: Plan, sources: Sources, bytes_of: BytesOf, timeline: Recorder | None, beside: Beside
    ) -> Residents:
        return DeviceResidents(plan, sources, bytes_of, timeline, beside, devices=self._lanes)

    def release(self) -> None:
        """Give back the memory that is kept for later: free memory may consist of its fragments alone."""
        for each in self._lanes:
            each.streams.release()


def backend_of(*devices: torch.device) -> Backend:
    """The backend that computes on the processor, or on a CUDA device or several.

    Raises:
        MissingDependencyError: a CUDA device needs Triton, which is not installed.
    """
    if devices[0].type == "cpu":
        return Backend()
    if find_spec("triton") is None:
        raise MissingDependencyError("triton", extra="cuda", feature="streaming to a CUDA device")
    # The first device computes in the caller's stream.
    lanes, dialect = [SegmentStreams(at, computes=at != devices[0]) for at in devices], dialect_for("cuda", "auto")
    return DeviceBackend(lanes, dialect, _route(devices), CudaDevices(devices))


def _route(devices: Sequence[torch.device]) -> Route:
    """The route that needs no description of the machine: each device loads a part of the rows, and the others copy these round a ring, if
    neighbours read each other's memory; else each device loads what it reads.
    """
    ring = [(number, (number + 1) % len(devices)) for number in range(len(devices))]
    if len(devices) == 1 or not all(torch.cuda.can_device_access_peer(devices[to], devices[at]) for at, to in ring):
        return EACH
    before = {f"device{to}": Before(f"device{at}", f"link{at}-{to}") for at, to in ring}
    return Route(name="spread", before=before, num_heads=len(devices))
