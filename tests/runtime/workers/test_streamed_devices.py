"""Parts that stream to a device: two workers, whose copies run as late as they may, have the numbers of one process in memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.kernels.dialects import dialect_for
from sagann.plan.steps import Block, Step
from sagann.runtime.blocks.residents import Residents
from sagann.runtime.blocks.sources import Sources
from sagann.runtime.device.backend import DeviceBackend
from sagann.runtime.device.parcels import tensors_of
from sagann.runtime.workers import Workers
from sagann.train.epoch_source import WholeGraph
from sagann.train.streaming import Streaming
from tests.runtime.device.late_streams import LateStreams
from tests.runtime.workers.epochs import Numbers, trained
from tests.runtime.workers.streamed_driver import budget_of, cases, in_double, prepared_by
from tests.runtime.workers.threads import in_threads
from tests.threads import left_threads
from tests.tolerances import assert_close, largest

CASES = {name: (build, graph) for name, build, graph in cases()}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[LateStreams]:
    """The devices that parts stream to, one for each model that is streamed."""
    found: list[LateStreams] = []
    begin, load = Residents.begin, Sources.load

    def backend(_: torch.device) -> DeviceBackend:
        found.append(LateStreams())
        return DeviceBackend(found[-1], dialect_for("cpu", "auto"))

    def begun(residents: Residents, step: Step) -> None:
        begin(residents, step)
        residents._transport._streams.step()

    def loaded(sources: Sources, block: Block) -> Any:
        content = load(sources, block)
        if block.kind == "edges":
            tensors = [content.indptr, content.indices, *content.edge_data.values()]
        else:
            tensors = tensors_of(content)
        for each in found:
            each.host += tensors
        return content

    monkeypatch.setattr("sagann.runtime.streaming.stream.backend_of", backend)
    monkeypatch.setattr(Residents, "begin", begun)
    monkeypatch.setattr(Sources, "load", loaded)
    return found


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("name", ["extremes", "jumping", "batch norms of edges"])
def test_numbers_are_those_of_one_process(
    devices: list[LateStreams], name: str, on_disk: bool, tmp_path: Path
) -> None:
    build, graph = CASES[name]
    making = threading.Lock()

    def numbers(workers: Workers | None) -> Numbers:
        # Threads have one source of random numbers.
        with making:
            predictor = prepared_by(build, graph, workers)
        prepared = predictor.prepare(in_double(graph))
        if workers is not None:
            spill = tmp_path / str(workers.rank) if on_disk else None
            predictor.stream_within(Streaming(memory_bytes=budget_of(predictor, prepared.part), spill=spill))
        found, _ = trained(predictor.model, WholeGraph(predictor, prepared))
        predictor.release()
        return found

    alone = numbers(None)
    for found in in_threads(numbers, 2):
        assert found.keys() == alone.keys()
        for key, value in found.items():
            # Gradients that a BatchNorm takes away are 0 but for rounding.
            assert_close(value, alone[key], scale=max(1.0, largest(alone[key])))
    assert all(copied > 0 for each in devices[-2:] for copied in each.copied.values())
    assert not left_threads()
