"""Options of another model of the zoo are said to have no effect, and train as if they were left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sagann.graph import random_split, sbm_graph
from sagann.nn import ModelConfig
from sagann.train import TrainConfig, Trainer


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "sage"}, ""),
        ({"model": "transformer", "heads": 4, "hidden": 64}, ""),
        ({"model": "gcn", "heads": 4}, "heads = 4 has no effect on gcn: gat, gatv2, transformer read it."),
    ],
)
def test_options_that_the_model_does_not_read_are_named(settings: dict[str, Any], said: str) -> None:
    assert ModelConfig(**settings).without_effect() == said


def test_options_of_another_task_are_named() -> None:
    config = ModelConfig(pool="mean,max", decoder="mlp")
    pool = "pool = mean,max has no effect here: it is read where whole graphs are learned."
    assert config.without_effect() == pool
    assert config.without_effect(of_graphs=True) == ""


def test_a_model_of_ones_own_is_told_how_options_are_given(tmp_path: Path) -> None:
    config = ModelConfig(model=f"{tmp_path}/mine.py:Net", heads=4)
    assert config.without_effect().endswith("given by --model-option heads=VALUE, or model_options.")


def test_a_trainer_says_so(caplog: pytest.LogCaptureFixture) -> None:
    graph = sbm_graph(60, num_classes=2, average_degree=4, homophily=0.8, num_features=4, feature_noise=0.1, seed=0)
    Trainer(
        ModelConfig(model="gcn", hidden=8, heads=4, pool="max"),
        random_split(graph, train=0.5, val=0.2, seed=0),
        TrainConfig(epochs=1),
        progress=False,
    )
    assert "heads = 4 has no effect on gcn" in caplog.text
    assert "pool = max has no effect here" in caplog.text
