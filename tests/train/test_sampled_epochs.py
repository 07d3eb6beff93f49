"""Sampled epochs: the same model, Trainer and evaluation, whatever the threads, and resumed bitwise."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError
from sagann.graph import Graph, Topology
from sagann.nn import ModelConfig, build_model
from sagann.plan.residency import BudgetError
from sagann.runtime.loading import MiniBatches
from sagann.runtime.tiered import DeviceFeatures, TieredFeatures
from sagann.storage import load_graph, save_graph
from sagann.tiering import CACHES
from sagann.train import TrainConfig, load_run, saver
from sagann.train.batch_epochs import SampledEpochs
from sagann.train.checkpoint import CheckpointFolder, Position
from sagann.train.epoch_source import EpochSource
from sagann.train.predictor import Predictor
from tests.graphs import labelled_graph
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.late_streams import LateStreams
from tests.stores import ComputedRows
from tests.threads import left_threads
from tests.train.runs import (
    CrashError,
    Heard,
    Mean,
    Mixing,
    Plain,
    TwoLayers,
    assert_same_bits,
    community_graph,
    fit_until,
    numbers_of,
    predictor_of,
    seeded_model,
    sparse_graph,
    trainer_of,
    weights_of,
    written_lines,
)

SAMPLED: dict[str, Any] = {"sample": (4, 3), "batch_size": 8, "epochs": 4, "batches_ahead": 4}


def gradients_of(source: EpochSource, parameters: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Loss of an epoch, and its gradients, with the weights that there are."""
    steps = [(step.loss(), step.num_labelled) for step in source.steps(1)]
    loss = sum(part * count for part, count in steps) / sum(count for _, count in steps)
    return loss.detach(), list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))


def model_named(name: str, graph: Graph) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(ModelConfig(model=name, hidden=16, dropout=0.0), graph)


class Positioned(nn.Module):
    """A row for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(100, 8), Mean(8, 3)

    def forward(self, hops: Any, x: Tensor) -> Tensor:
        return self.layer(hops[0], x + self.table(torch.arange(len(x))))


class Residual(nn.Module):
    """Rows of a hop's destinations, taken from those of its sources."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = Mean(8, 8), nn.BatchNorm1d(8), Mean(8, 3)

    def forward(self, hops: Any, x: Tensor) -> Tensor:
        rows = self.norm(self.first(hops[0], x)) + x[: hops[0].num_dst]
        return self.second(hops[1], rows)


@pytest.mark.parametrize(("model", "num_hops"), [(Mixing, 2), (Positioned, 1)])
def test_a_model_that_mixes_vertices_is_refused_before_training(model: type[nn.Module], num_hops: int) -> None:
    trainer = trainer_of(model(), epochs=1, sample=(-1,) * num_hops)
    with pytest.raises(LayerError, match="mini-batches must treat vertices independently between its layers"):
        trainer.fit()
    trainer_of(model(), epochs=1).fit()


def test_fanouts_and_features_are_those_of_the_models_hops() -> None:
    with pytest.raises(
        InputError, match=r"wrong number of fanouts: 2, .* 3 hops .*Set 3 fanouts, as --sample 10,10,10"
    ):
        trainer_of(ModelConfig(layers=3), sample=(25, 10))
    with pytest.raises(InputError, match="Train it on the whole graph; it reads no edge"):
        trainer_of(seeded_model(Plain), sample=(3,))
    with pytest.raises(InputError, match="mini-batches need features, but the vertices have none"):
        trainer_of(ModelConfig(), replace(community_graph(), features=None), sample=(25, 10))


def test_a_model_whose_weights_are_not_finite_is_said_to_diverge() -> None:
    assert trainer_of(Residual(), epochs=1, sample=(3, 3), batch_size=7).fit().history[0].loss > 0
    model = Residual()
    next(model.first.parameters()).data.view(-1)[0] = torch.nan
    with pytest.raises(InputError, match="training diverged: the training loss of epoch 1 is nan"):
        trainer_of(model, epochs=1, sample=(3, 3)).fit()


def hardly_joined(train: Tensor) -> Graph:
    """A graph of two edges, with these vertices to train on."""
    topology = Topology.from_coo(src=torch.arange(2), dst=torch.arange(2), num_src=90)
    return community_graph().with_topology(topology).with_splits({"train": train})


@pytest.mark.parametrize(
    ("num_seeds", "batch_size", "sizes"), [(21, 10, [11, 10]), (31, 5, [7, 7, 7, 7, 3]), (3, 2, [3])]
)
def test_a_batch_norm_gets_no_batch_of_one_vertex(num_seeds: int, batch_size: int, sizes: list[int]) -> None:
    graph = hardly_joined(torch.arange(90) < num_seeds)
    predictor = predictor_of(TwoLayers(), graph)
    config = TrainConfig(sample=(3, 3), batch_size=batch_size)
    source = SampledEpochs(predictor, predictor.prepare(graph), config)
    steps = [(step.num_labelled, float(step.loss().detach())) for step in source.steps(1)]
    assert [count for count, _ in steps] == sizes
    assert source.num_batches == len(sizes)


def test_a_batch_norm_cannot_be_trained_on_one_vertex() -> None:
    graph = hardly_joined(torch.arange(90) == 5)
    with pytest.raises(LayerError, match=r"BatchNorm that is trained needs two rows at least.*model TwoLayers"):
        trainer_of(TwoLayers(), graph, epochs=1, sample=(3, 3), batch_size=8).fit()


RESUMED: dict[str, dict[str, Any]] = {
    "Adam": {"optimizer_options": {"amsgrad": True}, "patience": 9},
    "LBFGS": {"optimizer": "LBFGS", "optimizer_options": {"max_iter": 3}, "weight_decay": 0.0, "lr": 0.1},
    "plateau": {"scheduler": "ReduceLROnPlateau", "scheduler_options": {"patience": 1}, "monitor": "val/loss"},
    "momentum": {
        "optimizer": "SGD",
        "optimizer_options": {"momentum": 0.9},
        "scheduler": "ExponentialLR",
        "scheduler_options": {"gamma": 0.9},
    },
}


@pytest.mark.usefixtures("every_batch_saved")
@pytest.mark.parametrize(
    ("epoch", "batch", "kind"),
    [(1, 1, "Adam"), (1, 3, "LBFGS"), (1, 3, "plateau"), (3, 2, "Adam"), (3, 2, "momentum")],
)
def test_a_run_that_crashed_within_an_epoch_is_the_uninterrupted_one(
    epoch: int, batch: int, kind: str, tmp_path: Path
) -> None:
    options = {**SAMPLED, **RESUMED[kind]}
    whole = trainer_of(run_dir=tmp_path / "whole", **options)
    expected = whole.fit()
    with pytest.raises(CrashError):
        trainer_of(run_dir=tmp_path / "cut", reporter=Heard(epoch, batch), **options, sampling_threads=3).fit()
    # A batch is saved before reporters are told of it.
    assert CheckpointFolder(tmp_path / "cut" / "checkpoints", keep=2).positions()[0] == Position(epoch - 1, batch)
    # Other weights at first show that none are left over; other threads are no other run.
    resumed = trainer_of(
        seeded_model(seed=9 if (epoch, batch) != (1, 1) else 0),
        run_dir=tmp_path / "cut",
        **{**options, "batches_ahead": 0},
    )
    result = resumed.resume()
    assert numbers_of(result) == numbers_of(expected)
    assert result.metrics == expected.metrics
    assert_same_bits(weights_of(resumed.model), weights_of(whole.model))


def test_the_seconds_of_an_epoch_add_up_and_leave_checkpoints_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sagann.train import session

    now_s = 0.0

    def forward(self: Predictor, batch: Any) -> Tensor:
        nonlocal now_s
        now_s += 10.0
        return forward_batch(self, batch)

    def write(self: CheckpointFolder, checkpoint: Any) -> Path:
        nonlocal now_s
        now_s += 1000.0
        return write_checkpoint(self, checkpoint)

    forward_batch, write_checkpoint = Predictor.forward_batch, CheckpointFolder.write
    monkeypatch.setattr(Predictor, "forward_batch", forward)
    monkeypatch.setattr(CheckpointFolder, "write", write)
    for module in (session, saver):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now_s))
    monkeypatch.setattr(saver, "_LEAST_SPACING", 0)
    fit_until(2, 3, run_dir=tmp_path, **SAMPLED)
    assert [record.epoch_s for record in trainer_of(run_dir=tmp_path, **SAMPLED).resume().history] == [40.0] * 4


def test_within_a_budget_evaluation_is_streamed_and_training_is_the_same(tmp_path: Path) -> None:
    graph, model = community_graph(600), ModelConfig(hidden=16)
    options: dict[str, Any] = {**SAMPLED, "epochs": 1, "weights": "last"}
    dense = trainer_of(model, graph, **options)
    streamed = trainer_of(model, graph, run_dir=tmp_path, **options, memory="100KiB")
    expected, found = dense.fit(), streamed.fit()
    assert [record.loss for record in found.history] == [record.loss for record in expected.history]
    assert_same_bits(weights_of(streamed.model), weights_of(dense.model))
    assert found.metrics["val"]["loss"] == pytest.approx(expected.metrics["val"]["loss"], rel=1e-5)
    assert load_run(tmp_path).evaluate(graph)["val"]["loss"] == pytest.approx(
        expected.metrics["val"]["loss"], rel=1e-5
    )


class Failing(ComputedRows):
    """Fails once when it is told to."""

    fails = False

    def rows(self, ids: Tensor) -> Tensor:
        if self.fails:
            raise OSError("the network is gone")
        return super().rows(ids)


def test_a_stage_that_raises_names_the_batch_and_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, model = replace(community_graph(), features=Failing(90, 8)), ModelConfig(model="sage", hidden=8)
    options: dict[str, Any] = {**SAMPLED, "memory": "1MiB", "checkpoint_every": 1, "batches_ahead": 0}
    expected = trainer_of(model, graph, run_dir=tmp_path / "whole", **options).fit()
    forward_batch, count = Predictor.forward_batch, 0

    def counted(self: Predictor, batch: Any) -> Tensor:
        nonlocal count
        count += 1
        Failing.fails = count == 10
        return forward_batch(self, batch)

    with monkeypatch.context() as patches:
        patches.setattr(Predictor, "forward_batch", counted)
        with pytest.raises(OSError, match="the network is gone") as caught:
            trainer_of(model, graph, run_dir=tmp_path / "cut", **options).fit()
    Failing.fails = False
    # Three calls try whether seeds are independent, and one measures the memory of a batch. Four batches an epoch: the sixth step is the second one of epoch 2.
    assert caught.value.__notes__ == ["Raised by stage 'load' of epoch 2, batch 2."]
    again = trainer_of(model, graph, run_dir=tmp_path / "cut", **options)
    assert numbers_of(again.resume()) == numbers_of(expected)


def test_a_step_that_raises_ends_the_threads() -> None:
    with pytest.raises(InputError, match="training diverged"):
        trainer_of(
            ModelConfig(model="sage", hidden=8), **SAMPLED, sampling_threads=3, optimizer="SGD", lr=1e30
        ).fit()
    assert not left_threads()


def mapped_graph(folder: Path, num_vertices: int = 600) -> Graph:
    """A graph whose features are in a file of 8 numbers a row."""
    save_graph(community_graph(num_vertices), folder)
    return load_graph(folder)


SAGE = ModelConfig(model="sage", hidden=8)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("options", [{}, {"batches_ahead": 0}, {"sampling_threads": 3, "batches_ahead": 9}])
def test_tiers_change_no_bit_and_count_every_row(cache: str, options: dict[str, Any], tmp_path: Path) -> None:
    graph = mapped_graph(tmp_path / "graph", 120)
    plain = trainer_of(SAGE, graph, **SAMPLED)
    expected = plain.fit()
    hot = trainer_of(SAGE, graph, run_dir=tmp_path / "run", **{**SAMPLED, **options}, hot="10%", cache=cache)
    found = hot.fit()
    assert numbers_of(found) == numbers_of(expected)
    assert_same_bits(weights_of(hot.model), weights_of(plain.model))
    lines = written_lines(tmp_path / "run")
    for record, line in zip(found.history, lines, strict=True):
        assert record.extra.items() <= line.items()
        assert line["hot_rows"] > 0
        assert line["cold_reads"] > 0
        assert (line["hot_bytes"], line["cold_bytes"]) == (32 * line["hot_rows"], 32 * line["cold_rows"])
    # Each epoch's own rows: those of its batches.
    sources = 0
    graph = predictor_of(plain.model, graph).prepare(graph).graph
    for batch in MiniBatches(graph, fanouts=(4, 3), batch_size=8).batches(2):
        sources += len(batch.src_ids)
    assert lines[1]["hot_rows"] + lines[1]["cold_rows"] == sources
    assert "hot_rows" not in expected.history[0].extra


def test_a_budget_gives_features_of_a_file_a_hot_tier_and_no_other_bits(tmp_path: Path) -> None:
    graph, heard = mapped_graph(tmp_path / "graph", 6000), Heard()
    options: dict[str, Any] = {**SAMPLED, "epochs": 2, "batch_size": 200, "cache": "static", "memory": "1300KiB"}
    chosen = trainer_of(SAGE, graph, run_dir=tmp_path / "chosen", reporter=heard, **options)
    found = chosen.fit()
    stated = trainer_of(SAGE, graph, run_dir=tmp_path / "stated", **{**options, "batches_ahead": 0}, hot="5%").fit()
    assert numbers_of(found) == numbers_of(stated)
    room, hot = heard.messages
    assert re.fullmatch("The memory budget has room for a queue of 1 mini-batches ahead, not of 4.", room)
    assert re.fullmatch(r"The memory budget has room for a hot tier of .* KiB: [1-9]\d\.\d% of the rows\.", hot)
    # In memory, evaluations round otherwise; training does not.
    dense = trainer_of(SAGE, graph, **{**options, "memory": None, "cache": "look-ahead"}).fit()
    assert [record.loss for record in dense.history] == [record.loss for record in found.history]
    assert all("hot_rows" in record.extra for record in found.history)
    # An evaluation has half of the budget, then and later.
    streaming = load_run(tmp_path / "chosen").streaming
    assert (streaming.memory_bytes, streaming.is_half) == (650 << 10, True)
    stated = load_run(tmp_path / "chosen", memory="1MiB").streaming
    assert (stated.memory_bytes, stated.is_half) == (1 << 20, False)


def test_a_budget_without_room_for_a_step_names_the_least(tmp_path: Path) -> None:
    graph = mapped_graph(tmp_path / "graph")
    options: dict[str, Any] = {**SAMPLED, "batch_size": 200, "epochs": 1}
    with pytest.raises(BudgetError, match=r"the memory budget cannot be met: .*60000 bytes.*, at least") as caught:
        trainer_of(SAGE, graph, **options, memory="60000B").fit()
    with pytest.raises(BudgetError):
        trainer_of(SAGE, graph, **options, memory=f"{caught.value.needed_bytes - 1}B").fit()
    assert trainer_of(SAGE, graph, **options, memory=f"{caught.value.needed_bytes}B").fit().epochs == 1


def test_a_store_of_the_users_is_read_by_mini_batches_within_a_budget_alone(tmp_path: Path) -> None:
    graph = mapped_graph(tmp_path / "graph")
    store = TieredFeatures(graph.features, "20%", cache="look-ahead")
    losses = []
    for memory, count in ((None, 1), ("64MiB", 0)):
        heard, before = Heard(), store.traffic().rows
        result = trainer_of(SAGE, replace(graph, features=store), reporter=heard, **SAMPLED, memory=memory).fit()
        losses.append([record.loss for record in result.history])
        said = [text for text in heard.messages if "All rows of the TieredFeatures are read into memory" in text]
        assert len(said) == count
        assert (store.traffic().rows > before) == (memory is not None)
    assert losses[0] == losses[1]


def test_features_in_memory_are_used_as_they_are_unless_a_hot_tier_is_asked_for() -> None:
    heard = Heard()
    result = trainer_of(SAGE, reporter=heard, **SAMPLED, memory="1MiB").fit()
    assert "hot_rows" not in result.history[0].extra
    assert not heard.messages
    result = trainer_of(SAGE, reporter=heard, **SAMPLED, hot="50%").fit()
    assert "hot_rows" in result.history[0].extra
    assert heard.messages == [
        "The features lie in memory: the hot tier takes memory beside them and saves no reads."
    ]


def test_a_store_with_tiers_of_its_own_is_counted(tmp_path: Path) -> None:
    graph = mapped_graph(tmp_path / "graph")
    store = TieredFeatures(graph.features, hot="20%")
    result = trainer_of(SAGE, replace(graph, features=store), **SAMPLED, memory="1MiB").fit()
    # Besides the epochs, a few batches are sampled to measure their memory.
    assert (
        0
        < sum(record.extra["hot_rows"] + record.extra["cold_rows"] for record in result.history)
        < store.traffic().rows
    )


def test_sparse_features_get_no_hot_tier() -> None:
    model = ModelConfig(model="sage", hidden=8, encoder="linear")
    for memory in (None, "1MiB"):
        with pytest.raises(InputError, match=r"sparse features have no tiers: hot is '10%'.*Leave hot out"):
            trainer_of(model, sparse_graph(), **SAMPLED, hot="10%", memory=memory).fit()
    within = trainer_of(model, sparse_graph(), **SAMPLED, memory="1MiB")
    assert "hot_rows" not in within.fit().history[0].extra


IN_PLACE = "The other rows are read in place from pinned memory."
GATHERED = "The other rows are gathered by the processor."
SAMPLED_THERE = r"Mini-batches are sampled by cuda:0\. The edges take .* of its memory\. .* more are read in place from pinned memory\."
HOT = r"The hot tier takes .* of cuda:0: \d\d\.\d% of the rows, those of the highest score \(cache 'static'\)\. "


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize(
    ("sample_on", "is_pinned", "last"),
    [("device", True, SAMPLED_THERE), ("cpu", True, HOT + IN_PLACE), ("cpu", False, HOT + GATHERED)],
)
def test_a_hot_tier_and_edges_on_the_device_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, sample_on: str, is_pinned: bool, last: str
) -> None:
    # The hot tier's device; and one with room for half of the edges' arrays.
    devices = iter([SimulatedDevices(refuse_at=None if is_pinned else 0), SimulatedDevices((6000,))])
    # The processor takes the device's place, with copies that are as late as they may be.
    minibatches = "sagann.runtime.loading.minibatches"
    monkeypatch.setattr(f"{minibatches}.device_named", lambda device, *, where: torch.device("cpu"))
    monkeypatch.setattr(f"{minibatches}.Streams", lambda device: LateStreams())
    monkeypatch.setattr("sagann.train.tiers._beside_budget", lambda device, config: next(devices))
    graph = labelled_graph()
    # GCN's degree weights are edge data.
    model = model_named("gcn", graph)
    predictor = predictor_of(model, graph)
    prepared, parameters = predictor.prepare(graph), list(model.parameters())
    expected = gradients_of(SampledEpochs(predictor, prepared, TrainConfig(**SAMPLED)), parameters)
    # The graph stays on the host, as where evaluations are streamed.
    predictor.device = torch.device("cuda", 0)
    said: list[str] = []
    config = TrainConfig(**SAMPLED, hot="30%", sample_on=sample_on)
    with nullcontext() if is_pinned else pytest.warns(RuntimeWarning, match="The features cannot be read in place"):
        source = SampledEpochs(predictor, prepared, config, say=said.append)
    found = gradients_of(source, parameters)
    assert torch.equal(found[0], expected[0])
    assert all(map(torch.equal, found[1], expected[1]))
    assert re.fullmatch(last, said[-1])
    assert sample_on == "device" or len(said) == 1
    store = source.minibatches.graph.features
    assert isinstance(store, DeviceFeatures)
    assert 0 < source.traffic.hot.rows < source.traffic.rows == store.traffic().rows
