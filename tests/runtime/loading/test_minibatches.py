"""Mini-batches of an epoch: every seed once, the same whatever the threads, from any batch on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.runtime.loading import MiniBatches
from sagann.runtime.loading.batches import useful_ahead
from sagann.runtime.tiered import DeviceFeatures, TieredFeatures
from sagann.sampling import NeighborSampler, seed_batches
from sagann.storage import load_graph, save_graph
from sagann.storage.mapped import MappedRows
from tests.graph.graphs import sparse
from tests.graphs import labelled_graph
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.late_streams import LateStreams
from tests.runtime.loading.batches import arrays_of, assert_same
from tests.stores import ComputedRows
from tests.threads import left_threads


def of(graph: Graph | None = None, **options: Any) -> MiniBatches:
    options = {"fanouts": [3, 2], "batch_size": 4, "ahead": 4, **options}
    return MiniBatches(labelled_graph() if graph is None else graph, **options)


def test_batches_are_taken_for_no_dataloader_and_move_as_tensors_do() -> None:
    minibatches = of(labelled_graph(types=2))
    # What loops of others ask of a DataLoader, where there is one of these.
    assert not any(hasattr(minibatches, name) for name in ("sampler", "batch_sampler", "dataset"))
    (batch, *_) = minibatches
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert {array.device.type for array in arrays_of(moved)} == {"meta"}
    assert [array.shape for array in arrays_of(moved)] == [array.shape for array in arrays_of(batch)]


def test_a_batch_is_what_sampler_and_features_give() -> None:
    graph = labelled_graph(types=2)
    seeds = graph.splits["train"].nonzero().squeeze(1)
    sampler = NeighborSampler(graph.topology, [3, -1], replace=True, weights="weight", seed=5)
    minibatches = of(graph, fanouts=[3, -1], replace=True, weights="weight", seed=5)
    for epoch in range(2):
        expected = seed_batches(seeds, 4, seed=5, epoch=epoch)
        assert len(minibatches) == len(expected) == 5
        for number, (ids, batch) in enumerate(zip(expected, minibatches, strict=True)):
            sampled = sampler.sample(ids, epoch=epoch, batch=number)
            assert torch.equal(batch.seeds, ids)
            assert torch.equal(batch.src_ids, sampled.src_ids)
            assert torch.equal(batch.features, graph.features[sampled.src_ids])
            assert torch.equal(batch.labels, graph.labels[ids])
            for ours, theirs in zip(batch.blocks, sampled.blocks, strict=True):
                assert torch.equal(ours.indices, theirs.indices)
                assert torch.equal(ours.edge_ids, theirs.edge_ids)
                assert torch.equal(ours.edge_data["type"], theirs.edge_data["type"])


@pytest.mark.parametrize(("threads", "ahead"), [(3, 0), (1, 1), (3, 9)])
def test_threads_and_batches_ahead_change_nothing(threads: int, ahead: int) -> None:
    assert_same(list(of(ahead=0)), list(of(threads=threads, ahead=ahead)))


@pytest.mark.parametrize(("cores", "expected"), [(2, 0), (3, 4)])
def test_few_cores_make_batches_in_the_step(cores: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.runtime.loading.batches.num_cores", lambda: cores)
    assert of(ahead=None).ahead == expected
    assert of(ahead=1).ahead == 1


def test_what_waits_is_made_ahead_on_few_cores_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sagann.runtime.loading.batches.num_cores", lambda: 2)
    graph = labelled_graph()
    assert useful_ahead(graph, torch.device("cuda")) == 4
    assert useful_ahead(replace(graph, features=None), torch.device("cpu")) == 0
    assert of(replace(graph, features=ComputedRows(graph.num_vertices, 3)), ahead=None).ahead == 4
    save_graph(graph, tmp_path / "graph")
    stored = load_graph(tmp_path / "graph")
    for at_hand, expected in ((True, 0), (False, 4)):
        monkeypatch.setattr(MappedRows, "is_at_hand", lambda self, start, stop, found=at_hand: found)
        assert of(stored, ahead=None).ahead == expected


def test_edge_data_that_learn_are_read_after_the_step_before() -> None:
    graph = labelled_graph()
    learned = torch.zeros(graph.num_edges, requires_grad=True)
    graph = graph.with_topology(graph.topology.with_edge_data(w=learned))
    for number, batch in enumerate(of(graph, threads=2)):
        assert bool((batch.blocks[0].edge_data["w"] == number).all())
        with torch.no_grad():
            learned += 1


def test_epochs_differ_and_come_again() -> None:
    minibatches = of()
    first, second = list(minibatches), list(minibatches)
    assert not torch.equal(
        torch.cat([batch.seeds for batch in first]), torch.cat([batch.seeds for batch in second])
    )
    minibatches.set_epoch(0)
    assert_same(list(minibatches), first)
    assert_same(list(minibatches), second)
    assert_same(list(minibatches.batches(1)), second)
    assert_same(list(minibatches.batches(1, first=3)), second[3:])
    # A loop that is left early has had its epoch.
    minibatches.set_epoch(0)
    for _ in minibatches:
        break
    assert_same(list(minibatches), second)


def test_all_batches_of_an_epoch_have_each_seed_once() -> None:
    graph = labelled_graph()
    for seeds, expected in (
        ("val", graph.splits["val"].nonzero().squeeze(1)),
        (graph.splits["test"], graph.splits["test"].nonzero().squeeze(1)),
        (torch.tensor([7, 3, 50]), torch.tensor([3, 7, 50])),
    ):
        found = torch.cat([batch.seeds for batch in of(graph, seeds=seeds)])
        assert torch.equal(found.sort().values, expected)
    in_order = of(graph, seeds=torch.arange(10).flip(0), shuffle=False, drop_last=True)
    assert [batch.seeds.tolist() for batch in in_order] == [[9, 8, 7, 6], [5, 4, 3, 2]]
    assert len(in_order) == 2


def test_seeds_of_a_split_have_labels() -> None:
    graph = labelled_graph()
    known = graph.labels.clone()
    known[::2] = -1
    batches = list(of(replace(graph, labels=known)))
    assert all(bool((batch.labels >= 0).all()) for batch in batches)
    seeds = torch.cat([batch.seeds for batch in batches]).sort().values
    assert torch.equal(seeds, (graph.splits["train"] & (known >= 0)).nonzero().squeeze(1))
    # Ids are taken as they are.
    (batch,) = of(replace(graph, labels=known), seeds=torch.tensor([0, 1]))
    assert -1 in batch.labels.tolist()


def test_features_come_from_a_store_and_may_be_sparse_or_missing() -> None:
    graph = labelled_graph()
    store = ComputedRows(graph.num_vertices, 5)
    for batch in of(replace(graph, features=store)):
        assert torch.equal(batch.features, store.rows(batch.src_ids))
    dense = torch.arange(2 * graph.num_vertices).reshape(-1, 2) % 3.0
    for batch in of(replace(graph, features=sparse(dense))):
        assert batch.features.layout == torch.sparse_csr
        assert torch.equal(batch.features.to_dense(), dense[batch.src_ids])
    assert all(batch.features is None for batch in of(replace(graph, features=None)))
    assert all(batch.labels is None for batch in of(replace(graph, labels=None, num_classes=0)))


def test_features_that_learn_are_refused() -> None:
    graph = labelled_graph()
    learned = torch.nn.Parameter(graph.features)
    with pytest.raises(InputError) as caught:
        of(graph.with_features(learned))
    assert str(caught.value) == (
        "features that learn would get no gradient: they require a gradient, and some rows at a time are copied without it (in "
        "MiniBatches.graph, features). Train on the whole graph; or pass features.detach(), and keep rows that learn in the model: a "
        "torch.nn.Embedding of the ids of a batch's vertices."
    )
    assert_same(list(of(graph.with_features(learned.detach()))), list(of(graph)))


def test_targets_come_with_the_batch() -> None:
    graph = labelled_graph()
    for shape in ((graph.num_vertices,), (graph.num_vertices, 2)):
        targets = torch.randn(shape)
        found = list(of(replace(graph, targets=targets)))
        for batch in found:
            assert torch.equal(batch.targets, targets[batch.seeds])
            assert torch.equal(batch.mapped(torch.clone).targets, batch.targets)
        assert sum(len(batch.seeds) for batch in found) == int(graph.splits["train"].sum())
        # Without labels, every vertex of the split is a seed.
        alone = replace(graph, labels=None, num_classes=0, targets=targets)
        assert sum(len(batch.seeds) for batch in of(alone)) == int(graph.splits["train"].sum())


class Failing(ComputedRows):
    """Fails at its third call."""

    calls = 0

    def rows(self, ids: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 3:
            raise OSError("the network is gone")
        return super().rows(ids)


@pytest.mark.parametrize("ahead", [0, 4])
def test_a_store_that_fails_ends_the_loop_with_the_batch_that_caused_it(ahead: int) -> None:
    graph = replace(labelled_graph(), features=Failing(53, 5))
    batches = iter(of(graph, ahead=ahead))
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(OSError, match="the network is gone") as caught:
        next(batches)
    assert caught.value.__notes__ == ["Raised by stage 'load' of epoch 0, batch 2."]


class Short(ComputedRows):
    """Loses a row."""

    def rows(self, ids: Tensor) -> Tensor:
        return super().rows(ids)[1:]


def test_a_store_that_gives_too_few_rows_is_refused() -> None:
    graph = replace(labelled_graph(), features=Short(53, 5))
    with pytest.raises(InputError, match="a feature store gives other rows than it states"):
        list(of(graph))


def test_counters_tell_edges_rows_and_bytes() -> None:
    batches = of().batches(0)
    found = list(batches)
    sample, load, caller = batches.counters
    assert (sample.name, load.name, caller.name) == ("sample", "load", "caller")
    assert sample.rows == sum(block.num_edges for batch in found for block in batch.blocks)
    assert load.rows == sum(len(batch.src_ids) for batch in found)
    assert load.num_bytes == sum(batch.features.nbytes for batch in found)
    assert caller.items == len(found) == 5


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"graph": 3}, "argument has the wrong type: a int, expected Graph (in MiniBatches.graph)."),
    ({"batch_size": 0}, "batch_size is out of range: 0, expected an integer from 1 to 2^63 - 1 (in MiniBatches."),
    ({"threads": 0}, "threads is out of range: 0, expected an integer from 1 to 8192 (in MiniBatches.threads)."),
    ({"ahead": -1}, "ahead is out of range: -1, expected an integer from 0 to 8192 (in MiniBatches.ahead)."),
    ({"shuffle": 1}, "a int, expected bool (in MiniBatches.shuffle). Pass True or False."),
    ({"drop_last": 1}, "argument has the wrong type: a int, expected bool (in MiniBatches.drop_last)."),
    ({"fanouts": [0]}, "fanout out of range: 0"),
    ({"weights": "price"}, "the topology has no edge data of that name: 'price', there are weight"),
    ({"device": "tpu"}, "no such device: 'tpu'"),
    ({"seeds": 3}, "a int, expected Tensor or list or tuple or ndarray (in MiniBatches.seeds)."),
    ({"seeds": np.array([1.7], np.float16)}, "wrong form: torch.float16 [1], expected torch.int64 [n]"),
    ({"seeds": [[1], [2, 3]]}, "these are no ids: "),
    ({"seeds": [2**70]}, "these are no ids: "),
    ({"seeds": torch.ones(3, dtype=torch.bool)}, "wrong form: torch.bool [3], expected torch.bool [53]"),
    ({"seeds": [53]}, "vertex id out of range: 53, but there are 53 vertices, numbered from 0"),
    (
        {"seeds": [3, 1, 3]},
        "vertex repeated: 3 stands more than once (in MiniBatches.seeds). Pass every id once, with",
    ),
    (
        {"seeds": "dev"},
        "the vertices have no such split: 'dev', there are train, val, test (in MiniBatches.seeds).",
    ),
    ({"seeds": []}, "an epoch has no batch: 0 seeds, batch_size 4 (in MiniBatches.seeds). Pass at least one seed."),
    ({"seeds": [0, 1], "drop_last": True}, "2 seeds, batch_size 4 (in MiniBatches.seeds). Leave drop_last out, or"),
)


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_no_argument_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        of(**options)
    assert message in str(caught.value)


def test_numbers_of_epochs_and_batches_are_checked() -> None:
    for use, message in (
        (lambda: of().set_epoch(-1), r"epoch is out of range: -1, .* \(in MiniBatches.set_epoch\)"),
        (lambda: of().batches(None), r"epoch is out of range: None, .* \(in MiniBatches.batches, epoch\)"),
        (lambda: of().batches(0, first=6), r"the epoch has fewer batches: first is 6, there are 5"),
    ):
        with pytest.raises(InputError, match=message):
            use()


def test_seeds_may_be_a_list_or_an_array_and_fanouts_numbers_of_numpy() -> None:
    expected = list(of(seeds=torch.tensor([7, 1, 3])))
    mask = [number in (1, 3, 7) for number in range(labelled_graph().num_vertices)]
    for seeds in ([7, 1, 3], (7, 1, 3), np.array([7, 1, 3], dtype=np.int32), np.array([7, 1, 3], dtype=np.uint16)):
        assert_same(list(of(seeds=seeds, fanouts=[np.int64(3), np.int32(2)])), expected)
    assert_same(list(of(seeds=mask)), list(of(seeds=torch.tensor(mask))))
    assert of(fanouts=[np.int64(3), -1]).neighbor_sampler.fanouts == (3, -1)


@pytest.mark.parametrize(
    ("cache", "threads", "ahead"), [("static", 1, 3), ("look-ahead", 1, 0), ("look-ahead", 3, 6)]
)
def test_two_loops_over_one_tiered_store_have_their_own_rows(cache: str, threads: int, ahead: int) -> None:
    graph = labelled_graph()
    store = TieredFeatures(graph.features, hot=0.3, cache=cache)
    shared = replace(graph, features=store)
    training = of(shared, batch_size=2, threads=threads, ahead=ahead)
    validation = of(shared, seeds=torch.arange(7, graph.num_vertices), batch_size=3, fanouts=[2, 2], ahead=ahead)
    taken = 0
    for epoch in range(5):
        for step, batch in enumerate(training.batches(epoch)):
            assert torch.equal(batch.features, graph.features[batch.src_ids])
            # A whole loop, one that is left early, and one that is open beside another loop of the same object.
            for other in validation:
                assert torch.equal(other.features, graph.features[other.src_ids])
                taken += 1
                if step % 2:
                    break
            if step == 3:
                same = zip(training.batches(epoch), training.batches(epoch), strict=True)
                assert all(torch.equal(one.features, other.features) for one, other in same)
    assert taken > 100
    assert not left_threads()


@pytest.mark.parametrize(("threads", "ahead"), [(1, 0), (3, 6)])
def test_rows_on_a_device_are_gathered_there(monkeypatch: pytest.MonkeyPatch, threads: int, ahead: int) -> None:
    monkeypatch.setattr("sagann.runtime.loading.minibatches.Streams", lambda device: LateStreams())
    graph = labelled_graph()
    store = DeviceFeatures(graph.features, "30%", devices=SimulatedDevices())
    expected, on_device = of(graph), of(replace(graph, features=store), threads=threads, ahead=ahead)
    for epoch in range(3):
        assert_same(list(expected.batches(epoch)), list(on_device.batches(epoch)))
    with on_device.batches(0) as batches:
        rows = sum(len(batch.src_ids) for batch in batches)
        stages = batches.counters
    assert [stage.name for stage in stages] == ["sample", "load", "copy", "caller"]
    assert (stages[1].rows, stages[1].num_bytes) == (rows, rows * graph.features[:1].nbytes)
    assert 0 < store.traffic().hot.rows < store.traffic().rows


def test_rows_on_another_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = labelled_graph()
    devices = SimulatedDevices()
    store = DeviceFeatures(graph.features, "30%", devices=devices)
    monkeypatch.setattr(devices, "device", lambda number: torch.device("cuda", 1))
    message = (
        r"features are read by another device: batches go to 'cpu', the rows to 'cuda:1' \(in MiniBatches.device\)\. "
        r"Pass device='cuda:1', or a store of that device\."
    )
    with pytest.raises(InputError, match=message):
        of(replace(graph, features=store))


def test_a_data_loader_is_told_to_be_left_out() -> None:
    loader = torch.utils.data.DataLoader(MiniBatches(labelled_graph(), fanouts=[2], batch_size=4))
    with pytest.raises(InputError, match=r"batches are not rows of a data set.*Leave the DataLoader out"):
        next(iter(loader))
