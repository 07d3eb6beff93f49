"""Streamed runs on a simulated device, recorded and queued; run by test_recorded_streams.py as a program of its own, which writes what it saw
into a JSON file.

python -m tests.train.recorded_streams_driver FILE
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from sagann.graph import Topology
from sagann.kernels.row_dropout import dropout
from sagann.plan.epoch import Planned
from sagann.plan.gradients import undivided_of
from sagann.plan.selection import ALWAYS, NEVER
from sagann.plan.steps import Move
from sagann.runtime.backend import DeviceBackend
from sagann.runtime.device.residents import SPARE_BYTES
from sagann.runtime.streaming import executor, stream
from sagann.storage import load_graph, save_graph
from sagann.train import Trainer
from tests.plain import auto_dialect
from tests.runtime.device.drivers import SimulatedDevices
from tests.simulated_device import DRIVERS, Kernels, SimulatedStreams
from tests.train.recorded_driver import (
    DEVICE,
    RUNNING,
    SCHEDULED,
    Watching,
    both,
    of_model,
    prepare,
    run,
    seeded,
    weighted,
    write_edges,
)
from tests.train.runs import TwoLayers, community_graph

EPOCHS = 5
MODELS = ("gcn", "gat", "ggnn", "gated-gcn", "own")
SHAPES = {"whole": "1MiB", "rectangular": "16KiB", "square": "16KiB"}
"Memory, by the shape of the grid."
SLICED = "24KiB"
SEEN: list[Planned] = []
"The plans of the run, in the order of their executors."


class Own(TwoLayers):
    """Means, a BatchNorm, and dropout of rows."""

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(hops[0], x)))
        return self.second(hops[1], dropout(hidden, 0.5) if self.training else hidden)


def made(name: str) -> Any:
    return seeded(Own) if name == "own" else of_model(name)


def streams(model: Any, queued: bool, *, shape: str = "rectangular", **options: Any) -> dict[str, Any]:
    """A run whose grid has a shape."""
    SEEN.clear()
    given = {"memory": SHAPES.get(shape, SLICED), "epochs": EPOCHS, "weights": "last", **SCHEDULED, **options}
    fitted = stream.fitted_intervals

    def squared(*args: Any, **kwargs: Any) -> Any:
        return fitted(*args, **{**kwargs, "is_square": True})

    def cut(program: Any, *args: Any, gradients: Any, **kwargs: Any) -> Any:
        part = fitted(program, *args, gradients=gradients, **kwargs)
        return replace(part, undivided=undivided_of(program, gradients), slice_lanes=3)

    with patch.object(stream, "fitted_intervals", {"square": squared, "sliced": cut}.get(shape, fitted)):
        return run(model, queued=queued, **given)


def peaks(planned: Planned) -> dict[str, int]:
    """The peak of a plan, and room to align each block that was loaded."""
    loaded, most = set[object](), 0
    for each in planned.plan.operations:
        if isinstance(each, Move):
            (loaded.add if each.kind == "load" else loaded.discard)(each.block) if each.kind != "store" else None
            most = max(most, len(loaded))
    return {"planned": planned.plan.peak_bytes, "spare": most * SPARE_BYTES}


def of_shape(name: str, shape: str) -> dict[str, Any]:
    found = both(lambda queued: streams(made(name), queued, shape=shape))
    # The run that is queued was the last one.
    planned = max(SEEN, key=lambda each: each.plan.peak_bytes)
    part = planned.schedule.part
    return {
        **found,
        "intervals": planned.plan.num_intervals,
        "is_undivided": bool(part.undivided) and not part.slice_lanes,
        "gathers": len(planned.program.gathers),
    }


def peak() -> dict[str, int]:
    streams(made("gcn"), False)
    found = peaks(max(SEEN, key=lambda each: each.plan.peak_bytes))
    on_top = 8192
    return {**found, "on top": on_top, "recorded": max(tape.peak_bytes for tape in SimulatedStreams.tapes)}


class Drawing(TwoLayers):
    """Draws random numbers that are no dropout's."""

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        rows = super().forward(hops, x)
        return rows * (0.5 + torch.rand_like(rows)) if self.training else rows


def reading_loss(outputs: Tensor, answers: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, answers, reduction="none")
    return losses * (1 + 0 * losses.detach().sum().item())


def refusing() -> Any:
    return patch.object(SimulatedDevices, "register", lambda self, address, num_bytes: 2)


def fragments() -> Any:
    return patch.object(SimulatedStreams, "fragments", 1e6)


def caused(context: Callable[[], Any] | None = None, model: Any = None, **options: Any) -> dict[str, Any]:
    with context() if context else ExitStack():
        return both(lambda queued: streams(model() if model else made("gcn"), queued, **options))


def changed(change: Callable[[Trainer], object]) -> dict[str, Any]:
    def make(queued: bool) -> dict[str, Any]:
        watching = Watching({4: lambda: change(RUNNING[0])})
        return streams(made("gat"), queued, shape="square", graph=weighted(), watching=watching, epochs=8)

    return both(make)


def resumed(folder: Path, queued: bool) -> dict[str, Any]:
    folder, model = folder / f"queued {queued}", made("gcn")
    streams(model, queued, run_dir=folder, epochs=4, checkpoint_every=3)
    return streams(made("gcn"), queued, run_dir=folder, epochs=8, resume=True)


def refused() -> dict[str, str]:
    """What the interpreter says of lanes that are used wrongly."""
    streams = SimulatedStreams(DEVICE[0])
    pinned, found = streams.pinned(64), dict[str, str]()

    def load(into: Tensor, *, forks: bool = True) -> None:
        if forks:
            streams.wait("load", streams.mark("compute"))
        with streams.on("load"):
            streams.copy(into, pinned)

    def freed() -> None:
        load(streams.empty(64))
        streams.empty(64)

    def raced() -> None:
        load(into := streams.empty(64))
        into.add_(1)

    wrong = {
        "unforked": lambda: load(streams.empty(64), forks=False),
        "unjoined": lambda: load(streams.empty(64)),
        "raced": raced,
        "freed": freed,
        "waited": lambda: streams.finish(streams.mark("compute")),
    }
    for name, work in wrong.items():
        try:
            streams.capture(work)
        except (AssertionError, RuntimeError) as error:
            found[name] = str(error)
    return found


def cases(folder: Path) -> dict[str, Any]:
    save_graph(community_graph(), folder / "graph")
    mapped = load_graph(folder / "graph")
    again = resumed(folder / "again", False)
    whole = streams(made("gcn"), False, epochs=8)
    return {
        "models": {f"{name}, {shape}": of_shape(name, shape) for name in MODELS for shape in SHAPES},
        "sliced": of_shape("gated-gcn", "sliced"),
        "peak": peak(),
        "refused": refused(),
        "causes": {
            "spill": caused(spill=str(folder)),
            "a file of features": caused(graph=mapped),
            "picked rows": caused(
                lambda: patch.object(stream, "measured_selection", lambda _: ALWAYS), shape="square"
            ),
            "no pinning": caused(refusing),
            "random numbers": caused(model=lambda: seeded(Drawing)),
            "a loss that reads": caused(loss=reading_loss),
            "fragments": caused(fragments),
            "too little memory": caused(lambda: patch.object(SimulatedStreams, "most_bytes", 4096)),
            "a profile": caused(profile=True),
        },
        "changes": {
            "features": changed(lambda trainer: trainer.prepared.graph.features.mul_(1.0)),
            "edge data": changed(write_edges),
            "plan": changed(lambda trainer: trainer.predictor.release()),
        },
        "resumed": both(lambda queued: resumed(folder / "both", queued))
        | {"whole": again["history"] == whole["history"] and again["weights"] == whole["weights"]},
    }


def simulate(backend: Callable[..., DeviceBackend], devices: Callable[[str], Sequence[torch.device]]) -> None:
    """Have models stream to simulated devices, and note their plans in :data:`SEEN`."""
    prepare()
    init = executor.Executor.__init__

    def seen(self: executor.Executor, planned: Planned, **given: Any) -> None:
        SEEN.append(planned)
        init(self, planned, **given)

    executor.Executor.__init__ = seen
    executor.dialect_for = lambda kind, name: Kernels
    stream.backend_of = backend
    stream.devices_named = devices
    stream.measured_selection = lambda device: NEVER


@auto_dialect("naive")
def main(path: Path) -> None:
    def backend(*devices: torch.device) -> DeviceBackend:
        driver = SimulatedDevices()
        DRIVERS[:] = [driver]
        return DeviceBackend([SimulatedStreams(each) for each in devices], Kernels(), driver=driver)

    simulate(backend, lambda name: DEVICE)
    with tempfile.TemporaryDirectory() as folder:
        path.write_text(json.dumps(cases(Path(folder))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
