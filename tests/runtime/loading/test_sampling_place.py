"""Batches that a device samples are those that the processor samples, on streams and devices that are simulated."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.kernels.edge import dialect_for
from sagann.runtime.loading import MiniBatch, MiniBatches
from sagann.runtime.loading.device_copies import DeviceCopies
from sagann.runtime.tiered import DeviceFeatures, DeviceTopology
from sagann.sampling import LearnedLinks
from tests.graphs import labelled_graph
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.late_streams import LateStreams
from tests.runtime.loading import batches

pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


def sampled_by(graph: Graph, memory: str = "50%") -> DeviceTopology:
    return DeviceTopology(graph.topology, memory, devices=SimulatedDevices())


def of(graph: Graph, **options: Any) -> MiniBatches:
    return MiniBatches(graph, **{"fanouts": [3, 2], "batch_size": 16, **options})


def with_out_edges(batch: MiniBatch) -> MiniBatch:
    """A batch with the out-edges that blocks of the processor have."""
    blocks = tuple(block.with_edge_data() for block in batch.blocks)
    for block in blocks:
        block.csr()
    return replace(batch, blocks=blocks)


def assert_same(ours: Iterable[MiniBatch], expected: Iterable[MiniBatch]) -> None:
    found = list(map(with_out_edges, ours))
    assert len(found) > 1
    batches.assert_same(found, list(map(with_out_edges, expected)))


@interpreted
@pytest.mark.parametrize(("features", "ahead"), [("processor", 0), ("device", 6), ("none", 6)])
def test_batches_are_those_that_the_processor_samples(
    monkeypatch: pytest.MonkeyPatch, features: str, ahead: int
) -> None:
    monkeypatch.setattr("sagann.runtime.loading.minibatches.Streams", lambda device: LateStreams())
    graph = labelled_graph()
    expected = of(graph if features != "none" else replace(graph, features=None))
    if features == "device":
        graph = replace(graph, features=DeviceFeatures(graph.features, "30%", devices=SimulatedDevices()))
    elif features == "none":
        graph = replace(graph, features=None)
    ours = of(graph, sample_on=sampled_by(graph), ahead=ahead)
    for epoch in range(2):
        assert_same(ours.batches(epoch), expected.batches(epoch))
    with ours.batches(0) as epoch:
        assert sum(batch.num_edges for batch in epoch) == epoch.counters[0].rows
        assert [stage.name for stage in epoch.counters] == ["sample", "load", "copy", "caller"]


@interpreted
@pytest.mark.filterwarnings("ignore:The features cannot be read in place:RuntimeWarning")
@pytest.mark.parametrize(("is_hot", "waits"), [(True, 1), (False, 2)])
def test_the_host_waits_once_for_a_batch_and_once_more_where_it_reads_rows(
    monkeypatch: pytest.MonkeyPatch, is_hot: bool, waits: int
) -> None:
    host_calls = pytest.importorskip("tests.runtime.host_calls")
    monkeypatch.setattr("sagann.runtime.loading.minibatches.Streams", lambda device: LateStreams())
    graph = labelled_graph()
    store = DeviceFeatures(graph.features, "30%", devices=SimulatedDevices(refuse_at=None if is_hot else 0))
    assert store.has_far_rows is not is_hot
    ours = of(replace(graph, features=store), sample_on=sampled_by(graph), ahead=0)
    copies = DeviceCopies(LateStreams(), store, dialect=dialect_for("cuda", "gpu"))
    for number, seeds in enumerate(ours.items_of(0)):
        with host_calls.counted(seeds) as calls:
            batch = ours.sample(seeds, epoch=0, batch=number)
            sent = copies.send(copies.pack(batch, store.pick(batch.src_ids)))
        assert number == 0 or calls.waits == {"mark": waits}
        copies.receive(sent)


@interpreted
def test_links_may_be_sampled_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.runtime.loading.minibatches.Streams", lambda device: LateStreams())
    graph = labelled_graph()
    given: dict[str, Any] = {"fanouts": [2], "batch_size": 64, "ahead": 0, "seeds": LearnedLinks(graph.topology)}
    ours = MiniBatches(graph, sample_on=sampled_by(graph), **given)
    assert_same(ours.batches(1), MiniBatches(graph, **given).batches(1))


def test_who_cannot_sample_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = labelled_graph()
    edges = sampled_by(graph)
    for sample_on, options, message in (
        ("device", {}, r"there is no device that could sample: batches go to 'cpu' .*Pass device='cuda'"),
        ("cuda", {}, r"nothing of that name samples: 'cuda' .*Choose one of cpu, device"),
        (None, {}, r"MiniBatches.sample_on"),
        (edges, {"weights": "weight"}, r"a device does not pick edges by weight: weights='weight'"),
        (sampled_by(labelled_graph(60)), {}, r"edges are those of another graph: Topology\(num_src=60"),
    ):
        with pytest.raises(InputError, match=message):
            of(graph, sample_on=sample_on, **options)
    monkeypatch.setattr(SimulatedDevices, "device", lambda self, number: torch.device("cuda", 1))
    message = r"edges are read by another device: batches go to 'cpu', the edges to 'cuda:1' .*Pass device='cuda:1'"
    with pytest.raises(InputError, match=message):
        of(graph, sample_on=edges)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("threads", "ahead"), [(1, 0), (2, 6)])
def test_a_device_has_the_batches_of_the_processor(threads: int, ahead: int) -> None:
    graph = labelled_graph(3000, 60_000)
    ours = of(graph, batch_size=64, device="cuda", sample_on="device", threads=threads, ahead=ahead)
    expected = of(graph, batch_size=64)
    for epoch in range(2):
        found = [batch.mapped(lambda array: array.cpu()) for batch in ours.batches(epoch)]
        assert_same(found, expected.batches(epoch))
