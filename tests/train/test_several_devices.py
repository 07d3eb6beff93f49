"""Training on several devices, which share a streamed epoch: numbers, resuming, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sagann
from sagann.errors import CheckpointError, InputError
from sagann.graph import Graph, demo_graph
from sagann.nn import ModelConfig
from sagann.runtime.workers.carriers import device_of_worker
from tests.runtime.device.late_streams import LateStreams
from tests.runtime.device.several import chain, simulate_devices

TWO, MEMORY = "cuda:0,cuda:1", "12MiB"


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[list[LateStreams]]:
    return simulate_devices(monkeypatch, chain)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return demo_graph()


def trainer(graph: Graph, run_dir: Path | None, **given: Any) -> sagann.Trainer:
    options = {"epochs": 4, "device": TWO, "memory": MEMORY, "checkpoint_every": 1, "weights": "last", **given}
    model = ModelConfig(model="gcn", hidden=8)
    return sagann.Trainer(model, graph, sagann.TrainConfig(**options), run_dir=run_dir, progress=False)


def weights(run: sagann.Trainer) -> list[torch.Tensor]:
    return [each.clone() for each in run.model.state_dict().values()]


def test_two_devices_train_what_one_trains_and_resume_with_the_same_bits(
    devices: list[list[LateStreams]], graph: Graph, tmp_path: Path
) -> None:
    alone = trainer(graph, None, device="cpu").fit()
    whole = trainer(graph, tmp_path / "whole")
    found = whole.fit()
    assert [each.loss for each in found.history] == pytest.approx([each.loss for each in alone.history], rel=1e-5)
    assert all(len(each) == 2 and all(lanes.copied["load"] for lanes in each) for each in devices)
    trainer(graph, tmp_path / "parts", epochs=2).fit()
    resumed = trainer(graph, tmp_path / "parts")
    resumed.fit(resume=True)
    for mine, theirs in zip(weights(resumed), weights(whole), strict=True):
        assert torch.equal(mine, theirs)
    opened = sagann.load_run(tmp_path / "whole", device=TWO)
    assert torch.equal(opened.predict(graph), whole.predict())
    # One device adds gradients in another order.
    with pytest.raises(CheckpointError, match="num_devices"):
        trainer(graph, tmp_path / "parts", device="cpu", epochs=5).fit(resume=True)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"memory": None}, "memory is not set"),
        ({"sample": (2, 2)}, "sample is set"),
        ({"device": "cuda:0,cpu"}, "device is 'cuda.*', expected"),
        ({"device": "cuda,cuda"}, "device is 'cuda.*', expected"),
    ],
)
def test_what_several_devices_do_not_share_is_refused_before_a_run_is_made(
    given: dict[str, Any], why: str, devices: list[list[LateStreams]], graph: Graph, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=why):
        trainer(graph, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_workers_have_one_device_each_and_several_devices_are_different_ones(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="workers have one each"):
        device_of_worker(TWO, local_rank=0, num_local=2)
    with pytest.raises(InputError, match="no such device: 'cuda:0'"):
        trainer(graph, tmp_path / "run")
    monkeypatch.setattr("sagann.runtime.places.num_cuda_devices", lambda: 2)
    with pytest.raises(InputError, match="each named once: 'cuda:1,cuda:1'"):
        trainer(graph, tmp_path / "run", device="cuda:1,cuda:1")
    assert not (tmp_path / "run").exists()
