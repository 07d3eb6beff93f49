"""Streamed runs on several simulated devices, recorded and queued; run by test_recorded_devices.py as a program of its own, which writes what it saw
into a JSON file.

python -m tests.train.recorded_devices_driver FILE
"""

from __future__ import annotations

# isort: off
from tests.simulated_cuda import MOST_BYTES, WORLD, Event, Stream, lent

# isort: on
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from sagann.plan.dealing import Route
from sagann.plan.epoch import Planned
from sagann.plan.selection import NEVER
from sagann.plan.steps import Move
from sagann.runtime.backend import DeviceBackend
from sagann.runtime.device import recording, streams as device_streams
from sagann.runtime.device.recording import SegmentStreams
from sagann.runtime.device.residents import SPARE_BYTES
from sagann.runtime.streaming import executor, stream
from sagann.train import device_epochs
from tests import simulated_device
from tests.plain import auto_dialect
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.several import ROUTES
from tests.simulated_device import _PINNED, DRIVERS, SIMULATED, Kernels
from tests.train.recorded_driver import SCHEDULED, both, prepare, run, seeded
from tests.train.recorded_streams_driver import Own, made, peaks

EPOCHS = 5
CASES = [(name, route) for route in ROUTES for name in ("gcn", "gat")] + [
    ("own", "chain of 2"),
    ("ggnn", "ring of 3"),
]
USED: list[tuple[int, Route]] = []
"How many devices the run has, and their route."
SEEN: list[Planned] = []


def trained(name: str, route: str, queued: bool = False, **options: Any) -> dict[str, Any]:
    SEEN.clear()
    WORLD.reset()
    USED[:] = [ROUTES[route]]
    return run(made(name), queued=queued, memory="16KiB", epochs=EPOCHS, weights="last", **{**SCHEDULED, **options})


def of_route(name: str, route: str) -> dict[str, Any]:
    found = trained(name, route)
    used, plans = dict(WORLD.peaks), list(SEEN)
    queued = trained(name, route, queued=True)
    same = [found[key] == queued[key] for key in ("history", "weights", "metrics", "best")]
    epoch = max((each for each in plans if each.schedule.part.is_dealt), key=lambda each: each.plan.peak_bytes)
    return {
        "same": all(same),
        "messages": found["messages"],
        "counts": found["counts"],
        "intervals": epoch.plan.num_intervals,
        "used": used,
    }


def cases() -> dict[str, Any]:
    return {"routes": {f"{name}, {route}": of_route(name, route) for name, route in CASES}}


@auto_dialect("naive")
def main(path: Path) -> None:
    prepare()
    device_epochs.GraphStreams = recording.GraphStreams
    init = executor.Executor.__init__

    def seen(self: executor.Executor, planned: Planned, **given: Any) -> None:
        SEEN.append(planned)
        init(self, planned, **given)

    def backend(*devices: torch.device) -> DeviceBackend:
        driver = SimulatedDevices()
        DRIVERS[:] = [driver]
        lanes = [SegmentStreams(each, computes=each != devices[0]) for each in devices]
        return DeviceBackend(lanes, Kernels(), USED[0][1], driver)

    def pinned(self: object, num_bytes: int) -> Tensor:
        if simulated_device._TAPES:
            raise simulated_device.NotRecordableError("cudaHostRegister")
        _PINNED.append(torch.full((num_bytes,), 0xFF, dtype=torch.uint8))
        return _PINNED[-1]

    device_streams.Streams.pinned = pinned
    device_streams.Streams.is_pinned = lambda self, tensor: simulated_device._is_pinned(tensor)
    SegmentStreams.lent = lambda self, tensor: lent(tensor) if self.is_recording else tensor
    executor.Executor.__init__ = seen
    executor.dialect_for = lambda kind, name: Kernels
    stream.backend_of = backend
    stream.devices_named = lambda name: [torch.device(SIMULATED, at) for at in range(USED[0][0])]
    stream.measured_selection = lambda device: NEVER
    path.write_text(json.dumps(cases()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
