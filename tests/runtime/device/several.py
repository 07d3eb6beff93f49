"""Devices of one model whose copies run as late as they may, and the routes between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from sagann.graph import Topology
from sagann.kernels.edge import dialect_for
from sagann.plan.dealing import EACH, Before, Route
from sagann.plan.intervals import PartIntervals
from sagann.plan.steps import Step
from sagann.runtime import backend as backends, places
from sagann.runtime.backend import Backend, DeviceBackend
from sagann.runtime.blocks.residents import Residents
from sagann.runtime.streaming.streamed import StreamedModel
from tests.runtime.device.late_streams import LateStreams

NAMES = tuple(f"device{number}" for number in range(8))


def ring(count: int, num_heads: int) -> Route:
    before = {NAMES[at]: Before(NAMES[(at or count) - 1], f"link{(at or count) - 1}-{at}") for at in range(count)}
    return Route(name="ring", before=before, num_heads=num_heads)


def chain(count: int) -> Route:
    """Pairs of devices, of which the second copies from the first."""
    before = {NAMES[at]: Before(NAMES[at - 1], f"link{at - 1}-{at}") for at in range(1, count, 2)}
    return Route(name="chain", before=before)


ROUTES = {
    "each of 2": (2, EACH),
    "each of 3": (3, EACH),
    "chain of 2": (2, chain(2)),
    "chains of 8": (8, chain(8)),
    "ring of 3": (3, ring(3, 3)),
    "ring of 8": (8, ring(8, 4)),
}
"Numbers of devices, and how blocks reach them."
RECORDED = [
    *(
        (name, route)
        for name, routes in {"gcn": ROUTES, "gat": ["each of 2", "ring of 3"]}.items()
        for route in routes
    ),
    ("own", "chain of 2"),
    ("ggnn", "ring of 3"),
]
"Models and routes whose epochs are recorded."


def note_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell devices of the steps that they begin."""
    begin = Residents.begin

    def begun(residents: Any, number: int, step: Step) -> None:
        begin(residents, number, step)
        residents._devices[step.owner].streams.step()

    monkeypatch.setattr(Residents, "begin", begun)


def late(count: int) -> list[LateStreams]:
    """Devices that belong together."""
    first = LateStreams()
    return [first, *(LateStreams(first) for _ in range(count - 1))]


def simulate_devices(
    monkeypatch: pytest.MonkeyPatch, route: Callable[[int], Route] = lambda _: EACH
) -> list[list[LateStreams]]:
    """Let late devices stand for the CUDA devices that several are named of, as 'cuda:0,cuda:1'; returns those of each model that is streamed."""
    made: list[list[LateStreams]] = []
    find, make = places.devices_named, backends.backend_of

    def devices_named(names: torch.device | str, **where: str) -> tuple[torch.device, ...]:
        parts = str(names).split(",")
        return find(names, **where) if len(parts) == 1 else (torch.device("cpu"),) * len(parts)

    def backend_of(*devices: torch.device) -> Backend:
        if len(devices) == 1:
            return make(*devices)
        made.append(late(len(devices)))
        return DeviceBackend(made[-1], dialect_for("cpu", "auto"), route(len(devices)))

    for module in ("sagann.runtime.streaming.stream", "sagann.train.resources"):
        monkeypatch.setattr(f"{module}.devices_named", devices_named)
    monkeypatch.setattr("sagann.runtime.streaming.stream.backend_of", backend_of)
    return made


def streamed_on(
    names: Sequence[str],
    model: nn.Module,
    hops: Sequence[Topology],
    bounds: Sequence[int],
    lanes: Sequence[LateStreams],
    *,
    route: Route = EACH,
    undivided: frozenset[tuple[str, str]] = frozenset(),
    **options: Any,
) -> StreamedModel:
    """A model whose intervals are dealt in turn to devices of these names. One that is named several times takes the place of several."""
    part = replace(PartIntervals.of_graph(bounds), devices=tuple(names), undivided=undivided)
    backend = DeviceBackend(lanes, dialect_for("cpu", "naive"), route)
    return StreamedModel(model, hops, bounds, dialect="naive", backend=backend, part=part, **options)
