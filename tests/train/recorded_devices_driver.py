"""Streamed runs on several simulated devices, recorded and queued; run by test_recorded_devices.py as a program of its own, which writes what it saw
into a JSON file.

python -m tests.train.recorded_devices_driver FILE
"""

from __future__ import annotations

# isort: off
from tests.simulated_cuda import WORLD, CUDAGraph, Event, Stream, current_stream, lent

# isort: on
import _thread
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from sagann.plan.dealing import Route
from sagann.plan.intervals import PartIntervals
from sagann.plan.segments import is_between_devices
from sagann.plan.steps import DEVICE, Move, Plan
from sagann.runtime.backend import DeviceBackend
from sagann.runtime.device import streams as device_streams
from sagann.runtime.device.residents import SPARE_BYTES
from sagann.runtime.device.segments import GraphStreams, SegmentStreams
from sagann.runtime.streaming import stream
from sagann.train import device_epochs
from tests import simulated_device
from tests.plain import auto_dialect
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.several import RECORDED, ROUTES
from tests.simulated_device import _PINNED, DRIVERS, SIMULATED, Kernels, SimulatedTensor
from tests.train.recorded_driver import SCHEDULED, both, run
from tests.train.recorded_streams_driver import SEEN, made, simulate

EPOCHS = 5
BOUNDS = (0, 0, 30, 50, 50, 90)
"Bounds of intervals, of which some are empty."
USED: list[tuple[int, Route]] = []
"How many devices the run has, and their route."
LAUNCHES: list[Callable[[], None]] = []
"What launches the recordings of the run."


def trained(name: str, route: str, queued: bool = False, **options: Any) -> dict[str, Any]:
    for each in (SEEN, LAUNCHES):
        each.clear()
    WORLD.reset()
    USED[:] = [ROUTES[route]]
    return run(made(name), queued=queued, memory="16KiB", epochs=EPOCHS, weights="last", **{**SCHEDULED, **options})


def of_route(name: str, route: str, **options: Any) -> dict[str, Any]:
    found, used = trained(name, route, **options), dict(WORLD.peaks)
    plans = [each.plan for each in SEEN if each.plan.levels]
    queued = trained(name, route, queued=True, **options)
    same = [found[key] == queued[key] for key in ("history", "weights", "metrics", "best")]
    # An epoch trains, and is evaluated.
    epoch, evaluation = (
        max((each for each in plans if trains(each) == is_epoch), key=num_segments) for is_epoch in (True, False)
    )
    return {
        "same": all(same),
        "messages": found["messages"],
        "counts": found["counts"],
        "epochs": len(found["history"]),
        "intervals": epoch.num_intervals,
        "segments": num_segments(epoch) + num_segments(evaluation),
        "copies": sum(is_between_devices(each) for plan in (epoch, evaluation) for each in plan.operations),
        "used": list(used.values()),
        "planned": [planned_bytes(epoch, f"device{index}") for index in used],
    }


def trains(plan: Plan) -> bool:
    return any(each.kind == "return" for each in plan.operations)


def num_segments(plan: Plan) -> int:
    """Segments that are begun: also for the memory of a block that comes from another device."""
    at = zip(plan.levels, plan.operations, strict=True)
    return len(
        {
            (level, each.owner)
            for level, each in at
            if each.kind != "drop" and (each.kind != "output" or each.owner == DEVICE)
        }
    )


def planned_bytes(plan: Plan, owner: str) -> int:
    """The peak of a plan, and room to align each block that a device has."""
    loaded, most = set[object](), 0
    for each in plan.operations:
        if isinstance(each, Move) and each.owner == owner and each.kind != "store":
            (loaded.add if each.kind == "load" else loaded.discard)(each.block)
            most = max(most, len(loaded))
    return plan.peak_bytes + most * SPARE_BYTES


def of_empty_intervals() -> dict[str, Any]:
    fitted = stream.fitted_intervals

    def cut(*given: Any, **options: Any) -> PartIntervals:
        return replace(PartIntervals.of_graph(BOUNDS), devices=fitted(*given, **options).devices)

    with patch.object(stream, "fitted_intervals", cut):
        return of_route("gcn", "ring of 3", class_weights="balanced")


def races() -> dict[str, Any]:
    """Of the waits between graphs and copies in two launches: whether a race is found without each of them, and how many of those that say something."""
    trained("gcn", "ring of 3")
    launch = max(LAUNCHES, key=lambda each: len(each.__self__.queue))  # type: ignore[attr-defined]
    waited = list[tuple[str, bool]]()

    def counts(stream: Stream, event: Event) -> bool:
        said = any(stream.clock[at] < number for at, number in event.clock.items())
        waited.append(("copy" if stream in copying else "graph", said))
        return False

    copying = {each for lanes in LANES for each in lanes._copies.values()}

    def found_without(lost: int | None) -> bool:
        calls = count()
        WORLD.run()
        WORLD.history.clear()
        WORLD.lost = lambda stream, event: next(calls) == lost
        try:
            launch()
            launch()
        except AssertionError as error:
            return "a race between" in str(error)
        finally:
            WORLD.lost = lambda stream, event: False
            WORLD.drop()
        return False

    is_whole = not found_without(None)
    WORLD.lost = counts
    launch()
    WORLD.lost = lambda stream, event: False
    WORLD.drop()
    found = {
        kind: [found_without(at) for at, known in enumerate(waited) if known == (kind, True)]
        for kind in ("graph", "copy")
    }
    return {"whole": is_whole, **{kind: [sum(each), len(each)] for kind, each in found.items()}}


def refused() -> dict[str, str]:
    """What the interpreter says of graphs that CUDA refuses."""
    devices = [torch.device(SIMULATED, at) for at in range(2)]
    streams, other = GraphStreams(devices[0]), SegmentStreams(devices[1], computes=True)
    here, there = (SimulatedTensor(torch.ones(4), at) for at in range(2))
    event, captured = Event(), Event()

    def of_another_graph() -> None:
        captured.record()
        streams.turn()
        current_stream().wait_event(captured)

    def at_once() -> None:
        with other.on("compute"):
            CUDAGraph().capture_begin(None, "relaxed")

    event.record()
    wrong = {
        "another device": lambda: there.add_(1),
        "memory of another device": lambda: torch.empty_like(here, device=devices[1]),
        "a copy between devices": lambda: here.copy_(there),
        "another graph": of_another_graph,
        "no graph": lambda: current_stream().wait_event(event),
        "two captures": at_once,
    }
    found = {}
    for name, work in wrong.items():
        with streams.queue():
            try:
                streams.capture(work)
            except (AssertionError, RuntimeError) as error:
                found[name] = str(error)
    return found


def recorded_in_autograd() -> list[bool]:
    """Whether a thread of PyTorch's, which is none of Python's, records what lanes of the model get, and those of another one."""
    device, found = torch.device(SIMULATED, 0), list[bool]()
    streams, own, others = GraphStreams(device), SegmentStreams(device), SegmentStreams(device)

    def look() -> None:
        found.extend(each.recording is not None for each in (own, others))
        done.release()

    def work() -> None:
        own.mark("compute")
        _thread.start_new_thread(look, ())
        done.acquire()

    done = _thread.allocate_lock()
    done.acquire()
    with streams.queue():
        streams.capture(work)
    return found


LANES: list[SegmentStreams] = []
"The lanes of the run that was begun last."


def cases() -> dict[str, Any]:
    return {
        "refused": refused(),
        "autograd": recorded_in_autograd(),
        "races": races(),
        "routes": {f"{name}, {route}": of_route(name, route) for name, route in RECORDED}
        | {"gcn, empty intervals": of_empty_intervals()},
        "causes": {
            "a file of blocks": both(
                lambda queued: trained("gcn", "each of 2", queued, spill=tempfile.gettempdir())
            )
        },
    }


@auto_dialect("naive")
def main(path: Path) -> None:
    capture = GraphStreams.capture

    def captured(self: GraphStreams, work: Callable[[], None]) -> Callable[[], None]:
        LAUNCHES.append(capture(self, work))
        return LAUNCHES[-1]

    def backend(*devices: torch.device) -> DeviceBackend:
        driver = SimulatedDevices()
        DRIVERS[:] = [driver]
        LANES[:] = [SegmentStreams(each, computes=each != devices[0]) for each in devices]
        return DeviceBackend(LANES, Kernels(), USED[0][1], driver)

    def pinned(self: object, num_bytes: int) -> Tensor:
        if simulated_device._TAPES:
            raise simulated_device.NotRecordableError("cudaHostRegister")
        _PINNED.append(torch.full((num_bytes,), 0xFF, dtype=torch.uint8))
        return _PINNED[-1]

    device_streams.Streams.pinned = pinned
    device_streams.Streams.is_pinned = lambda self, tensor: simulated_device._is_pinned(tensor)
    SegmentStreams.lent = lambda self, tensor: lent(tensor) if self.recording else tensor
    GraphStreams.capture = captured
    simulate(backend, lambda name: [torch.device(SIMULATED, at) for at in range(USED[0][0])])
    device_epochs.GraphStreams = GraphStreams
    path.write_text(json.dumps(cases()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
