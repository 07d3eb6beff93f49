"""One way to run sagann's epoch, in a process of its own: by the engine, or streamed with or without a budget.

Features and graph lie in memory, and spilled blocks are read and written, not mapped. So what the process grows by while
it runs is anonymous memory, and its resident peak is a measure of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.epochs import sagann_worker
from bench.standalone.serve import forget_peak, give_back, memory_bytes, serve, timed
from bench.standalone.training import Training
from sagann.graph import Graph
from sagann.kernels.memory import POOL
from sagann.plan.machine import Machine
from sagann.plan.residency import BudgetError
from sagann.plan.steps import UNLIMITED
from sagann.runtime.forecasting.forecast import forecast
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.stream import stream
from sagann.runtime.streaming.streamed import StreamedModel

WAYS: Mapping[str, str] = {
    "engine": "engine",
    "loop": "P = 1, usual loop",
    "folded": "P = 1, loss folded",
    "ram": "budget, host in RAM",
    "disk": "budget, host on disk",
}
"How an epoch is run, and what a table calls it. With a budget, the loss is folded too."
LIMITED = ("ram", "disk")
"Those that have a budget."
SHARE = 8
"The budget is the dense working set divided by this."
# What cross_entropy passes over by default.
_IGNORED = -100


class Folded(Training):
    """The same epoch with the loss computed where the last stage's rows are."""

    def __init__(self, streamed: StreamedModel, x: Tensor, labels: Tensor, train: Tensor) -> None:
        super().__init__(partial(streamed, x), streamed.model, labels, train)
        self._streamed, self._x = streamed, x
        self._targets = torch.full_like(labels, _IGNORED)
        self._targets[train] = labels[train]

    def loss(self) -> Tensor:
        return self._streamed.loss(self._x, self._loss_of)

    def _loss_of(self, rows: Tensor, vertices: slice) -> Tensor:
        return F.cross_entropy(rows, self._targets[vertices], reduction="sum") / len(self.train)


class Run:
    def __init__(
        self, training: Training, streamed: StreamedModel | None = None, planned: Mapping[str, Any] | None = None
    ) -> None:
        self.training, self.streamed, self.planned = training, streamed, planned

    def run(self) -> float:
        return self.training.run()

    def first(self, epochs: int) -> dict[str, Any]:
        """Run the first epochs: seconds, losses, and the most that they took above the moment before.

        One more shows how far copying and computing overlap.
        """
        self.rest()
        before = memory_bytes("VmRSS")
        forget_peak()
        found = timed(self, epochs)
        peak_bytes = memory_bytes("VmHWM") - before
        self.rest()
        return {**found, "peak_bytes": peak_bytes, "planned": self.planned, "hidden": self._hidden()}

    def _hidden(self) -> float | None:
        """The share of the shorter of copying and computing that overlapped the other in one epoch; None for the engine."""
        if self.streamed is None:
            return None
        self.streamed.timeline = recorder = Recorder()
        self.run()
        self.streamed.timeline = None
        return recorder.hidden

    def turn(self, epochs: int) -> dict[str, Any]:
        """Run an epoch untimed, which takes its memory anew, and then some: their seconds."""
        self.run()
        found = timed(self, epochs)
        self.rest()
        return found

    def rest(self) -> None:
        """Return what is kept for the next epoch, so that all who wait leave the memory to the one that runs."""
        POOL.release()
        give_back()


def build(specification: dict, graph: Graph) -> Run:
    way = specification["way"]
    if way == "engine":
        return Run(sagann_worker.build(specification, graph))
    x, labels = graph.features, graph.labels
    assert x is not None
    assert labels is not None
    model, wanted_bytes = sagann_worker.model_of(specification, graph), None
    streamed = stream(model, graph, budget_bytes=UNLIMITED)
    if way in LIMITED:
        wanted_bytes = streamed.plan(x, folded=True).plan.peak_bytes // SHARE
        spill = Path(specification["folder"]) / "spill" if way == "disk" else None
        streamed = within(wanted_bytes, model, graph, spill)
    train = graph.splits["train"].nonzero().squeeze(1)
    found = streamed.plan(x, folded=way != "loop")
    machine = Machine.from_toml(specification["machine"], where="machine")
    expected = forecast(found, machine, on_disk=way == "disk", rehearsal=(model, graph))
    training = (
        Training(partial(streamed, x), model, labels, train)
        if way == "loop"
        else Folded(streamed, x, labels, train)
    )
    plan = found.plan
    planned = {
        "P": plan.num_intervals,
        "wanted": wanted_bytes,
        "budget": None if wanted_bytes is None else plan.budget_bytes,
        "peak": plan.peak_bytes,
        "loaded": plan.loaded_bytes,
        "stored": plan.stored_bytes,
        # What the host has to hold beside features and edges: each block that is stored, and what is gathered once for all epochs.
        "on host": plan.spilled_bytes + found.schedule.constant_bytes,
        "expected_s": expected.timeline.seconds,
    }
    return Run(training, streamed, planned)


def within(
    budget_bytes: int, model: nn.Module, graph: Graph, spill: Path | None, *, device: torch.device | str = "cpu"
) -> StreamedModel:
    """The model streamed within a budget, or else within the least that can be met."""
    while True:
        try:
            streamed = stream(model, graph, budget_bytes=budget_bytes, spill=spill, device=device)
            streamed.plan(graph.features, folded=True)
            return streamed
        except BudgetError as error:
            budget_bytes = error.needed_bytes


if __name__ == "__main__":
    serve(sagann_worker.load, build, {"first": Run.first, "turn": Run.turn})
