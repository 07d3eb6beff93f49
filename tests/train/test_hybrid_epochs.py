"""Hybrid epochs: whoever trains, the loss and the gradient are those of the whole mini-batch."""

from __future__ import annotations

import copy
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError, TrainerError
from sagann.graph import Graph
from sagann.hybrid.cuda_trainer import CudaTrainer
from sagann.hybrid.trainer import HostTrainer, Trainer as Accelerator
from sagann.nn import ModelConfig, build_model
from sagann.runtime.processor import num_cores
from sagann.saga.layer import count_hops
from sagann.storage import load_graph, save_graph
from sagann.train import TrainConfig, Trainer
from sagann.train.batch_epochs import SampledEpochs
from sagann.train.hybrid_epochs import HybridEpochs
from sagann.train.predictor import Predictor
from tests.graphs import labelled_graph
from tests.hybrid.message_trainer import MessageTrainer
from tests.hybrid.processes import spawned_by
from tests.runtime.device.late_streams import LateStreams
from tests.train.runs import (
    Heard,
    TwoLayers,
    assert_same_bits,
    community_graph,
    numbers_of,
    predictor_of,
    sparse_graph,
    trainer_of,
    values_graph,
    weights_of,
)

HYBRID: dict[str, Any] = {"sample": (4, 3), "batch_size": 12, "epochs": 3, "weights": "last"}
DEVICES = "host:1,accelerator:1"


def trainer_here(name: str, predictor: Predictor) -> Accelerator:
    """An accelerator in this process; a CUDA device is none, and its copies are as late as they may be."""
    model, parameters = copy.deepcopy(predictor.model).train(), list(predictor.model.parameters())
    loss_of = Predictor(model, predictor.contract, device=predictor.device, loss=predictor.mean_loss).loss_of_batch
    if name.startswith("cuda"):
        return CudaTrainer("cuda", model, loss_of, parameters, LateStreams())  # type: ignore[arg-type]
    return MessageTrainer(name, lambda: (model, loss_of), parameters)


def with_messages(source: HybridEpochs, predictor: Predictor) -> HybridEpochs:
    """The source with accelerators in this process."""
    host = {"host": HostTrainer(predictor.loss_of_batch, list(predictor.model.parameters()))}
    source.trainers = {
        **(host if source.devices.uses_host else {}),
        **{name: trainer_here(name, predictor) for name in source.devices.names},
    }
    return source


def epoch_of(source: Any, parameters: list[nn.Parameter]) -> tuple[list[float], list[Tensor]]:
    """The losses of the steps of an epoch, and the sum of their gradients."""
    losses, total = [], [torch.zeros_like(parameter) for parameter in parameters]
    for step in source.steps(2):
        loss = step.loss()
        losses.append(loss.item())
        for summed, part in zip(
            total, torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True), strict=True
        ):
            summed.add_(part)
    return losses, total


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
    torch.manual_seed(0)
    model = build_model(ModelConfig(model=name, hidden=16, dropout=0.0), graph).double()
    predictor = predictor_of(model, graph)
    prepared = predictor.prepare(graph)
    parameters = list(model.parameters())
    options: dict[str, Any] = {"sample": (3,) * count_hops(model), "batch_size": batch_size}
    expected_losses, expected = epoch_of(SampledEpochs(predictor, prepared, TrainConfig(**options)), parameters)
    source = HybridEpochs(predictor, prepared, TrainConfig(devices=devices, **options))
    losses, found = epoch_of(with_messages(source, predictor), parameters)
    assert losses == pytest.approx(expected_losses, rel=1e-11)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["sage", "appnp"])
def test_dropout_drops_the_same_whatever_the_shares(name: str) -> None:
    graph = community_graph()
    torch.manual_seed(0)
    model = build_model(ModelConfig(model=name, hidden=16, dropout=0.5), graph).double()
    predictor = predictor_of(model, graph)
    model.train()
    prepared, parameters = predictor.prepare(graph), list(model.parameters())
    options: dict[str, Any] = {"sample": (3,) * count_hops(model), "batch_size": 9}
    found = []
    for devices in ("accelerator", "host,accelerator", "host:1,accelerator:3,accelerator:1", "host,cuda"):
        source = HybridEpochs(predictor, prepared, TrainConfig(devices=devices, **options))
        torch.manual_seed(len(found))
        before = torch.get_rng_state()
        found.append(epoch_of(with_messages(source, predictor), parameters))
        # The run's generator is not drawn from.
        assert torch.equal(torch.get_rng_state(), before)
    for losses, gradients in found[1:]:
        assert losses == pytest.approx(found[0][0], rel=1e-11)
        for ours, theirs in zip(gradients, found[0][1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


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
    torch.manual_seed(0)
    model = build_model(ModelConfig(model="sage", hidden=8, dropout=0.0), graph)
    predictor = predictor_of(model, graph)
    prepared, parameters = predictor.prepare(graph), list(model.parameters())
    expected, _ = epoch_of(
        SampledEpochs(predictor, prepared, TrainConfig(sample=(4, 3), batch_size=12)), parameters
    )
    source = HybridEpochs(predictor, prepared, TrainConfig(sample=(4, 3), batch_size=12, devices=devices))
    losses, _ = epoch_of(with_messages(source, predictor), parameters)
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("cache", ["static", "look-ahead"])
def test_features_come_from_tiers(cache: str, tmp_path: Path) -> None:
    save_graph(community_graph(), tmp_path / "graph")
    graph = load_graph(tmp_path / "graph")
    predictor = predictor_of(build_model(ModelConfig(model="sage", hidden=8, dropout=0.0), graph), graph)
    prepared = predictor.prepare(graph)
    config = TrainConfig(sample=(4, 3), batch_size=12, devices="host,accelerator,cuda", hot="40%", cache=cache)
    expected = [
        step.loss().item()
        for step in SampledEpochs(predictor, prepared, TrainConfig(sample=(4, 3), batch_size=12)).steps(2)
    ]
    source = with_messages(HybridEpochs(predictor, prepared, config), predictor)
    assert [step.loss().item() for step in source.steps(2)] == pytest.approx(expected, rel=1e-5)
    assert min(source.traffic.hot.rows, source.traffic.cold.rows) > 0


def test_an_epoch_goes_on_in_the_middle() -> None:
    graph = community_graph()
    predictor = predictor_of(build_model(ModelConfig(model="sage", hidden=8, dropout=0.0), graph), graph)
    config = TrainConfig(sample=(4, 3), batch_size=7, devices=DEVICES)
    source = with_messages(HybridEpochs(predictor, predictor.prepare(graph), config), predictor)
    whole = [step.loss().item() for step in source.steps(1)]
    steps = source.steps(1, first=2)
    assert next(steps).loss().item() == pytest.approx(whole[2], rel=1e-6)
    # Left early: the shares that were sent are dropped.
    steps.close()
    assert [step.loss().item() for step in source.steps(1, first=3)] == pytest.approx(whole[3:], rel=1e-6)
    assert sum(source.work.seeds.values()) == 30 - 3 * 7


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
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
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
def test_a_model_file_several_calls_a_step_and_cores_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom sagann import SagaLayer\n\n\nclass Mine(SagaLayer):\n"
        "    def __init__(self, in_dim, out_dim):\n        super().__init__()\n"
        "        self.map = torch.nn.Linear(2 * in_dim, out_dim)\n\n"
        "    def apply_edge(self, edge):\n        return edge.src\n\n"
        "    def apply_vertex(self, vertex, accum):\n        return self.map(torch.cat([vertex, accum], dim=1))\n"
    )
    everything = os.sched_getaffinity(0)
    seen = list[set[int]]()

    def look() -> None:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):
                seen.append(os.sched_getaffinity(int(thread)))

    # LBFGS asks for a loss several times, and an iteration counts once.
    options = {**HYBRID, "optimizer": "LBFGS", "weight_decay": 0.0, "optimizer_options": {"max_iter": 4}}
    model = ModelConfig(model=f"{tmp_path / 'mine.py'}:Mine", hidden=8)
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


def test_batch_norm_is_refused() -> None:
    with pytest.raises(LayerError, match="mini-batches are divided among devices"):
        trainer_of(TwoLayers(), devices=DEVICES, **HYBRID).fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": (4, 3), "devices": "host"}, "no list of trainers"),
        ({"sample": (4, 3), "sharing": "static"}, "sharing.*joint where devices is not set"),
        ({"sample": (4, 3), "mapping": "model"}, "mapping.*cores where devices is not set"),
        ({"sample": (4, 3), "link_rate": 1e9}, "link_rate.*None where devices is not set"),
        ({"sample": (4, 3), "devices": DEVICES, "device": "cuda"}, "'auto' or 'cpu' where devices is set"),
        ({"sample": (4, 3), "devices": DEVICES, "memory": "1GiB"}, "memory.*None where devices is set"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig(**options)
