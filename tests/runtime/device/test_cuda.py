"""Streaming to a real device."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.graph import Graph, Topology
from sagann.nn import ModelConfig, build_model
from sagann.plan.steps import UNLIMITED
from sagann.runtime.device.streams import PinnedPool, Streams
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.stream import stream
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.train import TrainConfig, Trainer
from tests.cuda import most_requested_bytes, requested_bytes, waits_refused
from tests.tolerances import assert_close, largest
from tests.train.runs import community_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MODELS = ["gcn", "sage", "gat", "ggnn", "maxpool-gcn", "gated-gcn", "gin", "commnet"]


def graph_of(num_vertices: int, num_edges: int, width: int) -> Graph:
    generator = torch.Generator().manual_seed(0)
    # Low ids are hubs.
    src, dst = (torch.rand(2, num_edges, generator=generator) ** 3 * num_vertices).long()
    return Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices),
        features=torch.randn(num_vertices, width, generator=generator),
        labels=torch.randint(5, (num_vertices,), generator=generator),
        num_classes=5,
    )


def within(
    share: int, name: str, graph: Graph, spill: Path | None = None, *, hidden: int = 32
) -> tuple[StreamedModel, StreamedModel]:
    """The same model on the device within a share of what it takes as a whole, and on the CPU."""
    config = ModelConfig(model=name, hidden=hidden, heads=4, layers=2, dropout=0.0)
    torch.manual_seed(0)
    model = build_model(config, graph)
    graph = model.prepare(graph)
    on_cpu = stream(model, graph, budget_bytes=UNLIMITED)
    torch.manual_seed(0)
    twin = build_model(config, graph).to("cuda")
    peak = (
        stream(twin, graph, budget_bytes=UNLIMITED, device="cuda").plan(graph.features, folded=True).plan.peak_bytes
    )
    streamed = stream(twin, graph, budget_bytes=max(peak // share, 1 << 20), device="cuda", spill=spill)
    return streamed, on_cpu


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("on_disk", [False, True])
def test_the_numbers_are_those_of_the_cpu(name: str, on_disk: bool, tmp_path: Path) -> None:
    graph = graph_of(6000, 60_000, 48)
    streamed, on_cpu = within(3, name, graph, tmp_path if on_disk else None)
    x = graph.features
    for _ in range(2):
        found = [streamed(x), *torch.autograd.grad(streamed(x).square().sum(), list(streamed.parameters()))]
    expected = [on_cpu(x), *torch.autograd.grad(on_cpu(x).square().sum(), list(on_cpu.parameters()))]
    assert all(each.is_cuda for each in found)
    for ours, theirs in zip(found, expected, strict=True):
        # Matrix products on a device have another order of sums.
        assert_close(ours.cpu() / 10, theirs / 10, scale=10 * largest(theirs))
    streamed.close()


@pytest.mark.parametrize("name", ["gcn", "gat", "maxpool-gcn"])
def test_an_epoch_takes_no_more_than_planned_and_the_host_waits_for_nothing(name: str) -> None:
    graph = graph_of(200_000, 3_000_000, 128)
    streamed, _ = within(8, name, graph)
    x, labels = graph.features, graph.labels
    on_device = labels.to("cuda")

    def loss_of(rows: Tensor, vertices: slice) -> Tensor:
        return F.cross_entropy(rows, on_device[vertices], reduction="sum") / len(labels)

    # Kernels are compiled, workspaces and pinned memory are there, gradients exist.
    for _ in range(2):
        streamed.loss(x, loss_of).backward()
    gc.collect()
    torch.cuda.synchronize()
    before = requested_bytes()
    torch.cuda.reset_peak_memory_stats()
    with waits_refused():
        streamed.loss(x, loss_of).backward()
    plan = streamed.plan(x, folded=True).plan
    assert plan.num_intervals > 1
    assert plan.stored_bytes > 0
    # Gradients of parameters, and what they are summed of, come on top.
    spare = 4 * sum(parameter.nbytes for parameter in streamed.parameters())
    assert most_requested_bytes() - before - spare <= plan.peak_bytes <= plan.budget_bytes


def test_copies_run_beside_what_computes() -> None:
    # The host queues a step in half a millisecond, so only longer copies are still running when the next step begins.
    graph = graph_of(400_000, 6_000_000, 256)
    streamed, _ = within(8, "gated-gcn", graph, hidden=256)
    x = graph.features
    for _ in range(2):
        streamed.loss(x, lambda rows, _: rows.square().sum()).backward()
    streamed.timeline = recorder = Recorder()
    streamed.loss(x, lambda rows, _: rows.square().sum()).backward()
    assert recorder.busy_s("load") > 0
    assert recorder.busy_s("compute") > 0
    assert recorder.hidden > 0.3


def test_a_trainer_keeps_a_run_within_the_device_s_budget(tmp_path: Path) -> None:
    model = ModelConfig(model="sage", layers=2, hidden=32, dropout=0.0)

    def losses(**options: str) -> list[float]:
        config = TrainConfig(epochs=5, **options)  # type: ignore[arg-type]
        run_dir = tmp_path / options["device"]
        return [
            record.loss for record in Trainer(model, community_graph(3000), config, run_dir=run_dir).fit().history
        ]

    assert losses(device="cuda", memory="2MiB") == pytest.approx(losses(device="cpu"), rel=1e-3)


def test_a_graph_that_lies_on_the_device_is_refused() -> None:
    graph = graph_of(100, 500, 8)
    model = build_model(ModelConfig(model="gcn", hidden=8), graph).to("cuda")
    with pytest.raises(ValueError, match="Leave the graph on the CPU and pass device='cuda'"):
        stream(model, model.prepare(graph).to("cuda"), budget_bytes=1 << 20, device="cuda")


def test_pinned_memory_is_pinned_and_given_back() -> None:
    streams = Streams(torch.device("cuda", torch.cuda.current_device()))
    pool = PinnedPool(streams)
    piece = pool.take(3 << 20)
    assert streams.is_pinned(piece)
    assert streams.is_pinned(piece[5:].view(-1)[:7])
    assert not streams.is_pinned(torch.ones(9))
    on_device = streams.empty(3 << 20)
    piece.fill_(7)
    with streams.on("load"):
        streams.wait("load", streams.mark("compute"))
        streams.copy(on_device, piece[: 3 << 20])
        arrived = streams.mark("load")
    streams.wait("compute", arrived)
    assert bool((on_device == 7).all())
    del piece, pool
    gc.collect()
    # The same addresses can be pinned again.
    again = [streams.pinned(3 << 20) for _ in range(4)]
    assert all(map(streams.is_pinned, again))
