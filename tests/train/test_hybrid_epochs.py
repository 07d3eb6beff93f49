"""Hybrid epochs: whoever trains, the loss and the gradient are those of the whole mini-batch."""

from __future__ import annotations

import json
import math
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError, TrainerError
from sagann.graph import Graph, for_task
from sagann.hybrid.devices import Devices
from sagann.nn import ModelConfig, build_model
from sagann.runtime.processor import num_cores
from sagann.runtime.tiered import DeviceTopology
from sagann.saga.layer import count_hops
from sagann.sampling import hold_out_links
from sagann.storage import load_graph, save_graph
from sagann.train import TrainConfig, Trainer
from sagann.train.batch_epochs import SampledEpochs
from sagann.train.epoch_source import source_of
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor
from sagann.train.runner import PreparedGraph
from sagann.train.session import TrainSession
from tests.graphs import labelled_graph
from tests.hybrid import faulty_layer
from tests.hybrid.message_trainer import MessageTrainer
from tests.hybrid.processes import spawned_by
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.late_streams import LateStreams
from tests.train.runs import (
    CPU,
    Heard,
    assert_same_bits,
    community_graph,
    numbers_of,
    predictor_of,
    sparse_graph,
    trainer_of,
    values_graph,
    weights_of,
    written_lines,
)

here = pytest.mark.usefixtures("simulated")
HYBRID: dict[str, Any] = {"sample": (4, 3), "batch_size": 12, "epochs": 3, "weights": "last"}
DEVICES = "host:1,accelerator:1"


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> LateStreams:
    """CUDA devices are none, and their copies are as late as they may be; accelerators are in this process."""
    streams = LateStreams()
    monkeypatch.setattr("sagann.train.hybrid_epochs.Streams", lambda device: streams)
    monkeypatch.setattr("sagann.train.hybrid_epochs.ProcessTrainer", MessageTrainer)
    monkeypatch.setattr(Devices, "cores", lambda self: [() for _ in self.accelerator_cores])
    monkeypatch.setattr(Devices, "own_cores", lambda self: ())
    monkeypatch.setattr(Devices, "cuda_devices", lambda self: [CPU for _ in self.cuda])
    monkeypatch.setattr(
        "sagann.train.tiers._beside_budget", lambda devices, config: simulated_devices(len(devices))
    )
    return streams


def simulated_devices(count: int) -> SimulatedDevices:
    return SimulatedDevices((1 << 20,) * count)


def opened(source: HybridEpochs) -> HybridEpochs:
    source.open()
    return source


def prepared_of(
    graph: Graph, name: str = "sage", *, hidden: int = 8, dropout: float = 0.0, dtype: torch.dtype = torch.float32
) -> tuple[Predictor, PreparedGraph]:
    """The predictor of a model of the zoo, and the graph that it has prepared."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(model=name, hidden=hidden, dropout=dropout), graph).to(dtype)
    predictor = predictor_of(model, graph)
    return predictor, predictor.prepare(graph)


def epoch_of(
    source: Any, parameters: Sequence[nn.Parameter], epoch: int = 2, first: int = 0
) -> tuple[list[float], list[Tensor]]:
    """The losses of the steps of an epoch, and the sum of their gradients."""
    losses, total = [], [torch.zeros_like(parameter) for parameter in parameters]
    for step in source.steps(epoch, first=first):
        for parameter in parameters:
            parameter.grad = None
        loss = step.loss()
        loss.backward()
        losses.append(step.complete(loss.detach(), step.num_edges)[0].item())
        for summed, parameter in zip(total, parameters, strict=True):
            if parameter.grad is not None:
                summed.add_(parameter.grad)
    return losses, total


def losses_of(source: Any, epoch: int, first: int = 0) -> list[float]:
    """The losses of the steps of an epoch, whose gradients are dropped."""
    return epoch_of(source, (), epoch, first)[0]


def assert_same_epoch(found: tuple[list[float], list[Tensor]], expected: tuple[list[float], list[Tensor]]) -> None:
    """Losses and gradients, in float64, differ by no more than another order of sums gives."""
    assert found[0] == pytest.approx(expected[0], rel=1e-11)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


@here
@pytest.mark.parametrize(
    ("name", "devices", "batch_size"),
    [
        ("gat", "host:1,accelerator:3,accelerator:1", 9),
        ("rgcn", "accelerator,host,cuda:1,cuda", 9),
        ("gcn", "accelerator,host,cuda:1,cuda", 9),
        ("sage", "accelerator,accelerator:2", 9),
        # Fewer seeds than trainers.
        ("sage", "host:1,accelerator:1,accelerator:1", 2),
    ],
)
def test_losses_and_gradients_are_the_whole_batchs(name: str, devices: str, batch_size: int) -> None:
    graph = labelled_graph(types=2 if name == "rgcn" else 0)
    predictor, prepared = prepared_of(graph, name, hidden=16, dtype=torch.float64)
    parameters = list(predictor.model.parameters())
    options: dict[str, Any] = {"sample": (3,) * count_hops(predictor.model), "batch_size": batch_size}
    expected = epoch_of(SampledEpochs(predictor, prepared, TrainConfig(**options)), parameters)
    source = HybridEpochs(predictor, prepared, TrainConfig(devices=devices, **options))
    assert_same_epoch(epoch_of(opened(source), parameters), expected)


@here
@pytest.mark.parametrize("name", ["sage", "appnp"])
def test_dropout_drops_the_same_whatever_the_shares(name: str) -> None:
    predictor, prepared = prepared_of(community_graph(), name, hidden=16, dropout=0.5, dtype=torch.float64)
    model = predictor.model.train()
    parameters = list(model.parameters())
    options: dict[str, Any] = {"sample": (3,) * count_hops(model), "batch_size": 9}
    found = []
    for devices in ("accelerator", "host,accelerator", "host:1,accelerator:3,accelerator:1", "host,cuda:1,cuda"):
        source = HybridEpochs(predictor, prepared, TrainConfig(devices=devices, **options))
        torch.manual_seed(len(found))
        before = torch.get_rng_state()
        found.append(epoch_of(opened(source), parameters))
        # The run's generator is not drawn from.
        assert torch.equal(torch.get_rng_state(), before)
    for other in found[1:]:
        assert_same_epoch(other, found[0])


@here
@pytest.mark.parametrize(
    ("graph", "devices"),
    [
        (sparse_graph(), DEVICES),
        (sparse_graph(), "host,cuda"),
        (values_graph(num_targets=2), DEVICES),
        (community_graph(multi_label=True), "host,cuda"),
    ],
)
def test_every_task_and_sparse_features(graph: Graph, devices: str) -> None:
    predictor, prepared = prepared_of(graph)
    expected = losses_of(SampledEpochs(predictor, prepared, TrainConfig(sample=(4, 3), batch_size=12)), 2)
    source = HybridEpochs(predictor, prepared, TrainConfig(sample=(4, 3), batch_size=12, devices=devices))
    assert losses_of(opened(source), 2) == pytest.approx(expected, rel=1e-5)


@here
@pytest.mark.parametrize("cache", ["static", "look-ahead"])
def test_features_come_from_tiers(cache: str, tmp_path: Path) -> None:
    save_graph(community_graph(), tmp_path / "graph")
    predictor, prepared = prepared_of(load_graph(tmp_path / "graph"))
    config = TrainConfig(sample=(4, 3), batch_size=12, devices="host,accelerator,cuda", hot="40%", cache=cache)
    expected = losses_of(SampledEpochs(predictor, prepared, TrainConfig(sample=(4, 3), batch_size=12)), 2)
    source = opened(HybridEpochs(predictor, prepared, config))
    assert losses_of(source, 2) == pytest.approx(expected, rel=1e-5)
    assert min(source.traffic.hot.rows, source.traffic.cold.rows) > 0


def tiered_source(devices: str, hot: str) -> HybridEpochs:
    """Trainers whose features come from the hot tiers of devices, and from the host's memory in place."""
    config = TrainConfig(sample=(4, 3), batch_size=100, devices=devices, sharing="static", hot=hot)
    return opened(HybridEpochs(*prepared_of(community_graph(3000)), config))


@here
def test_of_hot_rows_two_devices_read_half_from_each_other() -> None:
    two, (predictor, prepared) = tiered_source("cuda:0,cuda:1", "10%"), prepared_of(community_graph(3000))
    losses = [losses_of(two, epoch) for epoch in (1, 2, 3)]
    alone = SampledEpochs(predictor, prepared, TrainConfig(sample=(4, 3), batch_size=100))
    assert losses[0] == pytest.approx(losses_of(alone, 1), rel=1e-5)
    asked = Counter[str]()
    for view in (store.tiers() for store in two._stores):
        asked.update({tier.split()[0]: counts.rows for tier, counts in view.items()})
    assert asked["peer"] == pytest.approx(asked["device"], rel=0.1)
    assert asked["in"] > asked["far"] == 0
    assert 0 < two.traffic.hot.rows < asked["device"] + asked["peer"]


@here
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
def test_devices_sample_their_shares_themselves() -> None:
    pytest.importorskip("triton")
    by_processor = tiered_source("host:1,cuda:0,cuda:1", "10%")
    by_devices = tiered_source("host:1,cuda:0,cuda:1", "10%")
    by_devices._edges = DeviceTopology(by_devices.minibatches.graph.topology, devices=simulated_devices(2))
    by_devices.trainers = by_devices._started()
    assert losses_of(by_devices, 1) == losses_of(by_processor, 1)


@here
def test_one_device_takes_the_sampled_path_itself() -> None:
    config = TrainConfig(sample=(4, 3), devices="cuda:0")
    source = source_of(*prepared_of(community_graph()), config, model_config=None, say=print)
    assert type(source) is SampledEpochs
    assert (config.computes_on, config.trains_together) == ("cuda:0", False)
    names = {"host,cuda:1,cuda:0": "cuda:1", "accelerator,host:1": "cpu", "cuda": "cuda:0"}
    assert {each: TrainConfig(sample=(4, 3), devices=each).computes_on for each in names} == names


def test_a_device_is_not_waited_for_with_all_seeds_or_some(simulated: LateStreams) -> None:
    config, waits = (
        TrainConfig(sample=(4, 3), batch_size=6, devices="host:1,cuda:0", sharing="static"),
        list[object](),
    )
    source = opened(HybridEpochs(*prepared_of(community_graph()), config))
    shared, threads = source.manager.assignment, torch.get_num_threads()
    simulated.finish = waits.append  # type: ignore[method-assign]
    # A share of the processor waits for its weights, and for nothing else.
    for seeds in ({"host": 0, "cuda:0": 6}, shared.seeds):
        source.manager.start_from(replace(shared, seeds=seeds))
        losses_of(source, 1)
        assert torch.get_num_threads() == threads
        assert not waits


@here
@pytest.mark.parametrize("devices", ["host:1,accelerator:1", "host:1,cuda:0,accelerator"])
def test_links_are_shared_as_vertices_are(devices: str) -> None:
    graph = for_task(hold_out_links(community_graph(), train=0.8, val=0.1, seed=0), "link-prediction")
    options: dict[str, Any] = {"sample": (-1, -1), "batch_size": 40, "task": "link-prediction", "negatives": 2}
    predictor, prepared = prepared_of(graph, dtype=torch.float64)
    parameters = list(predictor.model.parameters())
    expected = epoch_of(SampledEpochs(predictor, prepared, TrainConfig(**options)), parameters)
    source = opened(HybridEpochs(predictor, prepared, TrainConfig(devices=devices, **options)))
    assert_same_epoch(epoch_of(source, parameters), expected)


class Full(torch.autograd.Function):
    """A loss whose backward finds no memory."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("Tried to allocate 2 GiB")


def session_with(
    change: Callable[[Predictor, Tensor], Tensor], devices: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[TrainSession, Predictor]:
    """A session of several trainers, whose losses are changed; and its predictor, which the own trainer has."""
    trainer = trainer_of(ModelConfig(model="sage", hidden=8, dropout=0.0), **HYBRID)
    loss_of_batch = Predictor.loss_of_batch
    monkeypatch.setattr(Predictor, "loss_of_batch", lambda self, batch: change(self, loss_of_batch(self, batch)))
    source = HybridEpochs(trainer.predictor, trainer.prepared, TrainConfig(devices=devices, **HYBRID))
    return trainer.session_of(trainer.predictor, opened(source)), trainer.predictor


@here
@pytest.mark.parametrize("devices", ["host:1,cuda:0", "host:1,accelerator:1"])
def test_a_trainer_whose_numbers_are_not_finite_is_named(devices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, own = session_with(
        lambda predictor, loss: loss * (1.0 if predictor is own else math.nan), devices, monkeypatch
    )
    name = "host" if "cuda" in devices else "accelerator0"
    with pytest.raises(TrainerError, match=rf"trainer '{name}' gave numbers that are not finite.*epoch 1, batch 0"):
        session.run_epoch()


@here
def test_a_device_that_is_full_in_its_backward_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    session, own = session_with(
        lambda predictor, loss: Full.apply(loss) if predictor is own else loss, "host:1,cuda:0", monkeypatch
    )
    with pytest.raises(
        TrainerError, match=r"trainer 'cuda:0' has failed while propagating epoch 1, batch 0: Tried"
    ):
        session.run_epoch()


@here
def test_no_checkpoint_has_weights_of_a_gradient_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss is finite. The device has done nothing yet when the checkpoint is due.
    session, own = session_with(
        lambda predictor, loss: loss if predictor is own else loss + (0 * loss).sqrt(), "host:1,cuda:0", monkeypatch
    )
    saved = []

    class Saving(Heard):
        def on_batch(self, progress: Any) -> None:
            saved.append(session.state_dict(run="", history_bytes=0))

    with pytest.raises(TrainerError, match=r"trainer 'host' gave numbers that are not finite.*epoch 1, batch 0"):
        session.run_epoch([Saving()])
    assert not saved


@here
def test_an_epoch_goes_on_in_the_middle_and_the_next_one_has_changed_weights() -> None:
    predictor, prepared = prepared_of(community_graph())
    config = TrainConfig(sample=(4, 3), batch_size=7, devices=DEVICES)
    source = opened(HybridEpochs(predictor, prepared, config))
    whole = losses_of(source, 1)
    steps = source.steps(1, first=2)
    step = next(steps)
    loss = step.loss()
    loss.backward()
    assert step.complete(loss.detach(), 0)[0].item() == pytest.approx(whole[2], rel=1e-6)
    # Left early: the shares that were sent are dropped.
    steps.close()
    assert losses_of(source, 1, 3) == pytest.approx(whole[3:], rel=1e-6)
    assert sum(source.work.seeds.values()) == 30 - 3 * 7
    with torch.no_grad():
        # As a checkpoint is restored: weights that were published for the next epoch do not count.
        for parameter in predictor.model.parameters():
            parameter.mul_(-2)
    expected = losses_of(SampledEpochs(predictor, prepared, replace(config, devices=None)), 2)
    assert losses_of(source, 2) == pytest.approx(expected, rel=1e-5)


def test_a_run_with_a_process_is_the_run_without_and_its_profile_has_every_stage_and_decision(
    tmp_path: Path,
) -> None:
    config, options = ModelConfig(model="sage", hidden=8, dropout=0.0), {**HYBRID, "epochs": 8, "batch_size": 6}
    alone = trainer_of(config, **options).fit()
    there = {"run_dir": tmp_path, "devices": DEVICES, "link_rate": 1e8, "profile": True}
    result = trainer_of(config, **there, **options).fit()
    for ours, theirs in zip(result.history, alone.history, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert ours.metrics["val"]["loss"] == pytest.approx(theirs.metrics["val"]["loss"], rel=1e-4)
    lines = written_lines(tmp_path)
    for line in lines:
        assert line["trainers"] == ["host", "accelerator0"]
        assert sum(line["trainer_seeds"]) == 30
    # Both share the first epoch.
    assert min(lines[0]["trainer_s"]) > 0
    assert lines[0]["transfer_s"][0] == 0 < lines[0]["transfer_s"][1]
    assert lines[-1]["trainer_why"].endswith(".")
    assert not spawned_by(os.getpid())
    events = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"compute", "store"}.isdisjoint(lanes.values())
    spans = [(lanes[event["tid"]], event["name"]) for event in events if event["ph"] == "X"]
    batches = [f"epoch 8, batch {number}" for number in range(5)]
    assert [name for lane, name in spans if lane == "sample"] == batches
    assert [name for lane, name in spans if lane == "load"] == batches
    work = result.history[-1].extra
    for name, seeds in zip(work["trainers"], work["trainer_seeds"], strict=True):
        assert any(lane == name for lane, _ in spans) == (seeds > 0)
    decided = [event["name"] for event in events if event["ph"] == "i"]
    assert len(decided) == work["trainer_moves"]
    assert all(text.endswith(".") for text in decided)


def kill_the_accelerator() -> None:
    (accelerator,) = spawned_by(os.getpid())
    os.kill(accelerator, signal.SIGKILL)


def test_a_run_whose_accelerator_is_killed_goes_on_without_it_and_with_another(tmp_path: Path) -> None:
    options = {**HYBRID, "epochs": 4, "checkpoint_every": 1}
    model = ModelConfig(model="sage", hidden=8, dropout=0.5)
    uninterrupted = trainer_of(model, devices=DEVICES, sharing="static", **options)
    expected = uninterrupted.fit()
    kills = Heard(3, 1, kill_the_accelerator)
    killed = trainer_of(
        model, run_dir=tmp_path / "run", reporter=kills, devices=DEVICES, sharing="static", **options
    )
    with pytest.raises(TrainerError, match=r"trainer 'accelerator0' is gone.*SIGKILL.*epoch 3, batch 1"):
        killed.fit()
    assert not spawned_by(os.getpid())
    # The same devices and shares: the bits of the run without the kill.
    again = trainer_of(model, run_dir=tmp_path / "run", devices=DEVICES, sharing="static", **options)
    found = [without_work(line) for line in numbers_of(again.resume())]
    assert found == [without_work(line) for line in numbers_of(expected)]
    assert_same_bits(weights_of(again.model), weights_of(uninterrupted.model))
    # With the trainers that are left.
    alone = trainer_of(model, run_dir=tmp_path / "run", **{**options, "epochs": 5})
    assert alone.resume().epochs == 5


def without_work(line: dict[str, Any]) -> dict[str, Any]:
    kept = ("epoch", "loss", "lr", "num_edges")
    return {name: value for name, value in line.items() if name in kept or "/" in name}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not tell the cores of a thread")
def test_a_model_file_several_calls_a_step_and_cores_of_its_own() -> None:
    everything = os.sched_getaffinity(0)
    seen = list[set[int]]()

    def look() -> None:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):
                seen.append(os.sched_getaffinity(int(thread)))

    # LBFGS asks for a loss several times, and an iteration counts once.
    options = {**HYBRID, "optimizer": "LBFGS", "weight_decay": 0.0, "optimizer_options": {"max_iter": 4}}
    model = ModelConfig(model=f"{faulty_layer.__file__}:Faulty", hidden=8)
    result = trainer_of(model, reporter=Heard(2, 1, look), devices=DEVICES, **options).fit()
    assert [sum(record.extra["trainer_seeds"]) for record in result.history] == [30] * 3
    assert seen
    # While it trains, this process keeps to its own core, if there is one for each.
    assert all(cores == ({min(everything)} if num_cores() > 1 else everything) for cores in seen)
    assert all(os.sched_getaffinity(int(thread)) == everything for thread in os.listdir("/proc/self/task"))


def test_a_loss_that_cannot_travel_is_refused() -> None:
    config = TrainConfig(devices=DEVICES, **HYBRID)

    def local(outputs: Tensor, answers: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, answers, reduction="none")

    trainer = Trainer(ModelConfig(hidden=8), community_graph(), config, loss=local, progress=False)
    with pytest.raises(InputError, match="cannot be sent to another process"):
        trainer.fit()


@pytest.mark.skipif(torch.cuda.device_count() > 63, reason="there is such a device")
def test_a_cuda_device_that_is_not_there_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match=r"no such device.*'cuda:63'.*PyTorch sees"):
        trainer_of(ModelConfig(model="sage", hidden=8), devices="host,cuda:63,accelerator", **HYBRID).fit()
    assert not spawned_by(os.getpid())
