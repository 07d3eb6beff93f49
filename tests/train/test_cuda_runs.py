"""Every way to train on a CUDA device has the losses that the processor has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sagann.graph import Graph
from sagann.nn import ModelConfig
from sagann.train import TrainResult
from tests.train.runs import community_graph, numbers_of, sparse_graph, trainer_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = "cuda"
EPOCHS = 4
RELATIVE = 1e-4
SAMPLED: dict[str, Any] = {"sample": (3, 2), "batch_size": 64}
# Options by way, and those of them that only say where data lie: without them the numbers are the same.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole": ({}, {}),
    "streamed": ({}, {"memory": "1MiB"}),
    "sampled": (SAMPLED, {}),
    "sampled, batches ahead": (SAMPLED, {"batches_ahead": 3, "sampling_threads": 2}),
    "sampled, a hot tier": (SAMPLED, {"hot": "30%", "cache": "static"}),
    "sampled, all rows hot": (SAMPLED, {"hot": "100%", "cache": "static"}),
    "sampled on the device": (SAMPLED, {"sample_on": "device", "batches_ahead": 3}),
    "sampled on the device, a hot tier": (SAMPLED, {"sample_on": "device", "hot": "30%", "cache": "static"}),
    "sampled, within a budget": (SAMPLED, {"memory": "8MiB"}),
}


def trained(graph: Graph, config: ModelConfig, device: str, **options: Any) -> TrainResult:
    return trainer_of(config, graph, device=device, epochs=EPOCHS, **options).fit()


def assert_as_on_the_processor(
    graph: Graph, config: ModelConfig, options: dict[str, Any], places: dict[str, Any]
) -> None:
    config = replace(config, dropout=0.0)
    expected = numbers_of(trained(graph, config, "cpu", **options))
    found = numbers_of(trained(graph, config, DEVICE, **options, **places))
    assert len(found) == len(expected) == EPOCHS
    assert expected[-1]["loss"] < expected[0]["loss"]
    for epoch, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=RELATIVE), epoch


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_every_way_to_train_has_the_losses_of_the_processor(model: str, way: str) -> None:
    assert_as_on_the_processor(community_graph(3000), ModelConfig(model=model, hidden=64), *WAYS[way])


@pytest.mark.parametrize("way", ["whole", "sampled", "sampled, batches ahead"])
@pytest.mark.parametrize("encoder", ["none", "linear"])
def test_sparse_features_stay_sparse_and_are_looked_at_where_they_lie(encoder: str, way: str) -> None:
    config = ModelConfig(model="gcn", hidden=16, encoder=encoder)
    assert_as_on_the_processor(sparse_graph(), config, *WAYS[way])


@pytest.mark.parametrize("devices", ["auto", "cuda:0", "host:2,cuda:0,accelerator:1"])
@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_processor_and_device_together_have_the_losses_of_one_processor(model: str, devices: str) -> None:
    config = ModelConfig(model=model, hidden=64, dropout=0.0)
    graph = community_graph(3000)
    expected = numbers_of(trained(graph, config, "cpu", **SAMPLED))
    result = trained(graph, config, "auto", devices=devices, **SAMPLED)
    for epoch, (ours, theirs) in enumerate(zip(numbers_of(result), expected, strict=True)):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=RELATIVE), epoch
    work = result.history[-1].extra
    assert min(work["trainer_seeds"]) > 0
    assert min(work["trainer_s"]) > 0
