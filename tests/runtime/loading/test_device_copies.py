"""Batches arrive on a device as they were sent, in whatever order the device copies."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sagann.errors import LayerError
from sagann.kernels.edge import dialect_for
from sagann.nn import ModelConfig, build_model
from sagann.runtime.loading import MiniBatch, MiniBatches
from sagann.runtime.loading.device_copies import DeviceCopies
from sagann.runtime.tiered import DeviceFeatures
from tests.cuda import waits_refused
from tests.graph.graphs import sparse
from tests.graphs import labelled_graph
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.late_streams import LateStreams
from tests.runtime.loading.batches import arrays_of, assert_same
from tests.train.runs import community_graph


def batches_of(**changes: object) -> list[MiniBatch]:
    graph = replace(labelled_graph(), **changes)
    return list(MiniBatches(graph, fanouts=[3, 2], batch_size=4, ahead=0))


@pytest.mark.parametrize("features", ["dense", "sparse", "none", "half"])
def test_batches_arrive_unchanged_although_copies_are_late(features: str) -> None:
    x = labelled_graph().features
    changed = {"dense": x, "sparse": sparse(x.relu()), "none": None, "half": x.half()}[features]
    batches = batches_of(features=changed)
    streams = LateStreams()
    copies = DeviceCopies(streams)
    sent = [copies.send(copies.pack(batch)) for batch in batches]
    assert len(sent) > 2
    found = [copies.receive(arrival) for arrival in sent]
    assert_same(found, batches)
    for batch, arrival in zip(batches, found, strict=True):
        assert [block.num_src for block in arrival.blocks] == [block.num_src for block in batch.blocks]


@pytest.mark.parametrize("refuse_at", [None, 0])
@pytest.mark.filterwarnings("ignore:The features cannot be read in place:RuntimeWarning")
def test_features_are_gathered_behind_the_copy_of_their_ids(refuse_at: int | None) -> None:
    x = labelled_graph().features
    # Without pinned memory, the rows that are not hot travel with the batch.
    store = DeviceFeatures(x.half(), "30%", devices=SimulatedDevices(refuse_at=refuse_at))
    batches = batches_of(features=x.half())
    copies = DeviceCopies(LateStreams(), store)
    fars = [store.pick(batch.src_ids) for batch in batches]
    assert any(len(far.positions) for far in fars) == (refuse_at is not None)
    sent = [
        copies.send(copies.pack(replace(batch, features=None), far))
        for batch, far in zip(batches, fars, strict=True)
    ]
    assert_same([copies.receive(arrival) for arrival in sent], batches)


def test_rows_made_in_pinned_memory_are_copied_from_there_and_the_memory_is_used_again() -> None:
    streams = LateStreams()
    copies = DeviceCopies(streams)
    graph = labelled_graph()
    minibatches = MiniBatches(graph, fanouts=[3, 2], batch_size=4, ahead=0)
    sent, batches = [], []
    for number, seeds in enumerate(minibatches.items_of(0)):
        sampled = minibatches.neighbor_sampler.sample(seeds, batch=number)
        with copies.making_rows():
            batches.append(minibatches.load(sampled))
        assert streams.is_pinned(batches[-1].features)
        sent.append(copies.send(copies.pack(batches[-1])))
    expected = [replace(batch, features=graph.features[batch.src_ids]) for batch in batches]
    assert_same([copies.receive(arrival) for arrival in sent], expected)
    # All copies are done.
    before = streams.pinned_bytes
    with copies.making_rows():
        again = minibatches.load(minibatches.neighbor_sampler.sample(minibatches.items_of(0)[0]))
    address = again.features.data_ptr()
    assert streams.pinned_bytes == before
    # Of an epoch that was left early.
    copies.withdraw()
    with copies.making_rows():
        again = minibatches.load(minibatches.neighbor_sampler.sample(minibatches.items_of(0)[0]))
    assert again.features.data_ptr() == address


def test_blocks_that_the_device_has_sampled_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = LateStreams()
    copies = DeviceCopies(streams)
    (batch, *_) = batches_of()
    there: list[Tensor] = []
    for block in batch.blocks:
        block.mapped(lambda array: there.append(array) or array)
    addresses = {array.data_ptr() for array in there}
    monkeypatch.setattr(
        "sagann.runtime.loading.device_copies._is_apart", lambda array: array.data_ptr() in addresses
    )
    handed: list[Tensor] = []
    monkeypatch.setattr(streams, "hand_over", handed.append)
    sent = copies.send(copies.pack(batch))
    found = copies.receive(sent)
    assert [array.data_ptr() for array in handed] == [
        sent.memory.data_ptr(),
        *(array.data_ptr() for array in there),
    ]
    for ours, theirs in zip(arrays_of(batch), arrays_of(found), strict=True):
        assert torch.equal(ours, theirs)
        assert (ours.data_ptr() == theirs.data_ptr()) == (ours.data_ptr() in addresses)


def test_edge_data_that_learn_keep_their_gradient() -> None:
    graph = labelled_graph()
    weight = torch.rand(graph.num_edges, requires_grad=True)
    (batch, *_) = batches_of(topology=graph.topology.with_edge_data(weight=weight))
    copies = DeviceCopies(LateStreams())
    found = copies.receive(copies.send(copies.pack(batch)))
    found.blocks[0].edge_data["weight"].sum().backward()
    assert int(weight.grad.count_nonzero()) == found.blocks[0].num_edges


def test_cuts_of_the_passes_travel_with_a_batch() -> None:
    pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    dialect: Any = dialect_for("cuda", "gpu")
    (batch, *_) = batches_of()
    copies = DeviceCopies(LateStreams(), dialect=dialect)
    found = copies.receive(copies.send(copies.pack(batch)))
    for ours, theirs in zip(found.blocks, batch.blocks, strict=True):
        for at in ("dst", "src"):
            cut = ours.derived(("cut", at), lambda: pytest.fail("the block has no cut"))
            expected = dialect.cut_of(theirs, at)
            assert torch.equal(cut.items, expected.items)
            assert cut.used_rows == expected.used_rows


def test_arrays_of_a_batch_are_written_to_one_by_one() -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gat", hidden=4, heads=2, dropout=0.0), graph)
    prepared = model.prepare(graph)
    copies = DeviceCopies(LateStreams())
    (batch, *_) = batches_of(topology=prepared.topology)
    found = copies.receive(copies.send(copies.pack(batch)))
    out = model(found.blocks, found.features)
    # Labels and edges lie in one memory.
    found.labels[:1] = 0
    torch.nn.functional.cross_entropy(out, found.labels).backward()
    for block in found.blocks:
        block.require_unwritten()
        block.indices[:1] = 0
        with pytest.raises(LayerError, match="edges of a topology were overwritten"):
            block.require_unwritten()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sample_on", ["cpu", "device"])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_a_training_step_never_waits_for_the_device(model: str, sample_on: str) -> None:
    graph = community_graph(3000)
    trained = build_model(ModelConfig(model=model, hidden=16, dropout=0.5), graph)
    prepared = trained.prepare(graph)
    trained.to("cuda")
    minibatches = MiniBatches(prepared, fanouts=[3, 2], batch_size=64, ahead=0, device="cuda", sample_on=sample_on)
    # The first epoch compiles and checks: layers see blocks of several forms.
    for epoch in range(2):
        for batch in minibatches:
            torch.cuda.synchronize()
            with waits_refused() if epoch else nullcontext():
                loss = torch.nn.functional.cross_entropy(trained(batch.blocks, batch.features), batch.labels)
                loss.backward()
