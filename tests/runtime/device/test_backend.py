"""An epoch by way of a device's copies, which run as late as they may, has the numbers of a dense run."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.graph import Topology, declare_constant
from sagann.kernels.edge import dialect_for
from sagann.plan import equal_vertices
from sagann.plan.selection import ALWAYS, Selection
from sagann.plan.steps import Block, Step
from sagann.plan.timeline import LANES
from sagann.runtime.backend import DeviceBackend
from sagann.runtime.blocks.residents import Residents
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import NaiveEngine, using_engine
from tests.runtime.device.late_streams import LateStreams
from tests.runtime.streams import assert_all_close, tight, zoo_model
from tests.threads import left_threads
from tests.tolerances import assert_close, largest


def tensors_of(content: object) -> list[Tensor]:
    found = list(content.values()) if isinstance(content, dict) else [content]
    return [each for each in found if isinstance(each, Tensor)]


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def streamed_late(
    model: nn.Module,
    hops: Sequence[Topology],
    x: Tensor,
    monkeypatch: pytest.MonkeyPatch,
    *,
    count: int = 4,
    dialect: str = "naive",
    **options: Any,
) -> tuple[StreamedModel, LateStreams]:
    """A model by late copies; it is checked that no block is dropped while a copy touches it."""
    topology = hops[0]
    streams = LateStreams()
    begin, discard = Residents.begin, Residents.discard

    def begun(residents: Residents, number: int, step: Step) -> None:
        begin(residents, number, step)
        streams.step()

    def discarded(residents: Residents, block: Block) -> None:
        tensors = tensors_of(residents.get(block))
        discard(residents, block)
        # Gradients of two values may be one tensor, which stays until both are dropped.
        kept = {storage_of(tensor) for content in residents._blocks.values() for tensor in tensors_of(content)}
        for tensor in tensors:
            assert storage_of(tensor) in kept or not streams.is_in_use(tensor), block

    monkeypatch.setattr(Residents, "begin", begun)
    monkeypatch.setattr(Residents, "discard", discarded)
    backend = DeviceBackend([streams], dialect_for("cpu", dialect))
    bounds = equal_vertices(topology.num_dst, count)
    return StreamedModel(model, hops, bounds, dialect=dialect, backend=backend, **options), streams


@pytest.mark.parametrize(
    ("name", "on_disk", "wanted_x"),
    [
        ("gcn", True, False),
        ("sage", False, False),
        ("gat", True, True),
        ("ggnn", False, False),
        ("rgcn", False, True),
    ],
)
def test_the_numbers_are_those_of_a_dense_run(
    name: str, on_disk: bool, wanted_x: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pieces of pageable memory are smaller than blocks.
    monkeypatch.setattr("sagann.runtime.device.residents.PIECE_BYTES", 1000)
    monkeypatch.setattr("sagann.runtime.device.residents.SMALL_BYTES", 100)
    model, hops, x = zoo_model(name, types=3)
    x.requires_grad_(wanted_x)
    with using_engine(NaiveEngine()):
        expected = model(hops, x)
    upstream = torch.randn(expected.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    leaves = [x, *model.parameters()] if wanted_x else list(model.parameters())
    wanted = torch.autograd.grad(expected, leaves, upstream, materialize_grads=True)
    streamed, streams = streamed_late(
        model,
        hops,
        x,
        monkeypatch,
        budget_bytes=tight(model, hops, x, bounds=equal_vertices(len(x), 4)).budget_bytes,
        spill=tmp_path if on_disk else None,
    )
    for _ in range(2):
        out = streamed(x)
        found = torch.autograd.grad(out, leaves, upstream, materialize_grads=True)
        assert_close(out, expected, scale=largest(expected))
        assert_all_close(found, wanted)
    stored_bytes = streamed.plan(x).plan.stored_bytes
    assert stored_bytes > 0 or not wanted_x
    assert streams.copied["load"] > 0
    assert (streams.copied["store"] > 0) == (stored_bytes > 0)
    assert not streams.unforeseen
    with torch.no_grad():
        assert_close(streamed(x), expected, scale=largest(expected))
    streamed.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("on_disk", [False, True])
def test_picked_rows_are_those_of_blocks_that_have_arrived(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, hops, x = zoo_model("gat")
    x.requires_grad_()
    leaves = [x, *model.parameters()]
    with using_engine(NaiveEngine()):
        wanted = torch.autograd.grad(model(hops, x).square().sum(), leaves)
    spill, bounds = tmp_path if on_disk else None, equal_vertices(len(x), 4)
    least_bytes = tight(model, hops, x, bounds=bounds, selection=ALWAYS).budget_bytes
    # With room for all, the same chunks are read without picking: what the host keeps of them stays as it is.
    for selection, budget_bytes in ((ALWAYS, least_bytes), (Selection(share=2.0), 1 << 30)):
        with monkeypatch.context() as patches:
            streamed, streams = streamed_late(
                model, hops, x, patches, budget_bytes=budget_bytes, spill=spill, selection=selection
            )
            plan = streamed.plan(x)
            assert plan.schedule.hops[0].needed
            assert (plan.plan.picked_bytes > 0) == selection.is_forced
            for _ in range(2):
                found = torch.autograd.grad(streamed(x).square().sum(), leaves)
                assert_all_close(found, wanted)
            assert not streams.unforeseen
            streamed.close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
def test_edges_come_with_their_cut_and_passes_do_not_look_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter, which runs beside tensors of the CPU, is off where there is a device")
    model, hops, x = zoo_model("gcn", dtype=torch.float32)
    streamed, streams = streamed_late(model, hops, x, monkeypatch, count=2, dialect="gpu", budget_bytes=1 << 20)
    run = importlib.import_module("sagann.kernels.edge.gpu.run")
    monkeypatch.setattr(run, "cut_of", lambda edges, at: pytest.fail("cut where it would wait for the device"))
    found = torch.autograd.grad(streamed(x).square().sum(), list(model.parameters()))
    with using_engine(NaiveEngine()):
        wanted = torch.autograd.grad(model(hops, x).square().sum(), list(model.parameters()))
    assert_all_close(found, wanted)
    assert not streams.unforeseen


def test_an_epoch_that_never_comes_to_its_backward_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, hops, x = zoo_model("gcn")
    x = declare_constant(x)
    budget = tight(model, hops, x, bounds=equal_vertices(len(x), 4)).budget_bytes
    streamed, streams = streamed_late(model, hops, x, monkeypatch, budget_bytes=budget)
    streamed(x).sum().backward()
    pinned_bytes = streams.pinned_bytes
    for _ in range(3):
        streamed(x)
        gc.collect()
    streamed(x).sum().backward()
    assert streams.pinned_bytes == pinned_bytes, "pinned memory is used again"
    assert not left_threads()


def test_what_a_device_does_is_recorded_by_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, hops, x = zoo_model("gat")
    x.requires_grad_()
    budget = tight(model, hops, x, bounds=equal_vertices(len(x), 4)).budget_bytes
    streamed, _ = streamed_late(model, hops, x, monkeypatch, budget_bytes=budget)
    streamed(x).sum().backward()
    streamed.timeline = recorder = Recorder()
    streamed(x).sum().backward()
    plan = streamed.plan(x).plan
    assert len(recorder.of("compute")) == sum(
        isinstance(each, Step) and each.kind != "return" for each in plan.operations
    )
    for lane, num_bytes in (("load", plan.loaded_bytes), ("store", plan.stored_bytes)):
        assert sum(span.num_bytes for span in recorder.spans if span.lane == lane) == num_bytes
    assert {span.lane for span in recorder.spans} == set(LANES)
    assert all(span.seconds >= 0 for span in recorder.spans)
    starts = [span.start_s for span in recorder.spans]
    assert 0 <= min(starts) <= max(starts) <= recorder.now_s
