"""Parts that stream to a device: two workers, whose copies run as late as they may, have the numbers of one process in memory."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sagann.kernels.edge import dialect_for
from sagann.plan.steps import Step
from sagann.runtime.backend import DeviceBackend
from sagann.runtime.blocks.residents import Residents
from sagann.runtime.workers import Workers
from sagann.train.contract import Contract
from sagann.train.predictor import Predictor
from sagann.train.streamed import Streaming
from tests.runtime.device.late_streams import LateStreams
from tests.runtime.workers.exactness_driver import CPU, Numbers, budget_of, cases, require_same, trained
from tests.runtime.workers.threads import in_threads
from tests.threads import left_threads

CASES = {case.name: case for case in cases()}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[LateStreams]:
    """The devices that parts stream to, one for each model that is streamed."""
    found: list[LateStreams] = []
    begin = Residents.begin

    def backend(_: torch.device) -> DeviceBackend:
        found.append(LateStreams())
        return DeviceBackend([found[-1]], dialect_for("cpu", "auto"))

    def begun(residents: Residents, number: int, step: Step) -> None:
        begin(residents, number, step)
        residents._devices[step.owner].streams.step()

    monkeypatch.setattr("sagann.runtime.streaming.stream.backend_of", backend)
    monkeypatch.setattr(Residents, "begin", begun)
    return found


@pytest.mark.parametrize(
    ("name", "on_disk"),
    [("several", False), ("several", True), ("jumping", False), ("empty parts, batch norms of edges", True)],
)
def test_numbers_are_those_of_one_process(
    devices: list[LateStreams], name: str, on_disk: bool, tmp_path: Path
) -> None:
    case, making = CASES[name], threading.Lock()
    graph = replace(case.graph, features=case.graph.features.double())

    def numbers(workers: Workers | None) -> Numbers:
        # Threads have one source of random numbers.
        with making:
            torch.manual_seed(5)
            model = case.build().double()
        predictor = Predictor(model, Contract.of(graph), device=CPU, workers=workers)
        prepared = predictor.prepare(graph)
        if workers is not None:
            spill = tmp_path / str(workers.rank) if on_disk else None
            predictor.stream_within(Streaming(memory_bytes=budget_of(predictor, prepared.part), spill=spill))
        found = trained(predictor, prepared)
        predictor.release()
        return found

    alone = numbers(None)
    for found in in_threads(numbers, 2):
        require_same(found, alone, 1e-10, name)
    assert all(copied > 0 for each in devices[-2:] for copied in each.copied.values())
    assert not left_threads("sagann-load")
