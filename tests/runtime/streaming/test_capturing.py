"""A model is traced once for each of its modes, however often a run asks for its program."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import sagann.compiler.capture
from sagann.nn import ModelConfig, build_model
from sagann.runtime.streaming import capturing
from sagann.runtime.streaming.capturing import captured
from sagann.train import TrainConfig, Trainer
from tests.graphs import labelled_graph
from tests.train.runs import community_graph


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each trace, whether the model was in training mode."""
    found: list[bool] = []
    capture = sagann.compiler.capture.capture

    def counted(model: torch.nn.Module, *given: Any, **options: Any) -> Any:
        found.append(model.training)
        return capture(model, *given, **options)

    monkeypatch.setattr(capturing, "capture", counted)
    return found


def test_a_run_within_a_budget_traces_the_model_once_to_train_and_once_to_evaluate(
    traces: list[bool], tmp_path: Path
) -> None:
    config = TrainConfig(epochs=3, device="cpu", memory="120KiB")
    trainer = Trainer(ModelConfig(hidden=8), community_graph(600), config, run_dir=tmp_path)
    trainer.fit()
    trainer.evaluate()
    assert sorted(traces) == [False, True]


def test_another_configuration_form_or_graph_is_another_program(traces: list[bool]) -> None:
    graph = labelled_graph(30, 90)
    model = build_model(ModelConfig(model="sage", hidden=8), graph)
    hops, x = graph.hops(2), graph.features
    assert x is not None
    first = captured(model, hops, x, x_is_constant=True)
    assert captured(model, hops, x, x_is_constant=True) is first
    assert captured(model, hops, x, x_is_constant=False) is not first
    assert captured(model, labelled_graph(30, 90).hops(2), x, x_is_constant=True) is not first
    assert captured(model.eval(), hops, x, x_is_constant=True) is not first
    assert captured(model.train(), hops, x, x_is_constant=True) is first
    assert len(traces) == 4


def test_programs_do_not_keep_the_model_alive() -> None:
    graph = labelled_graph(30, 90)
    model = build_model(ModelConfig(model="sage", hidden=8), graph)
    assert graph.features is not None
    program = captured(model, graph.hops(2), graph.features, x_is_constant=True)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    del program
