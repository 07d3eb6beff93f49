"""Metrics of the user's own, functions and objects, beside those of the task."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.nn import ModelConfig
from sagann.train import TrainConfig, Trainer, load_run
from sagann.train.metrics import KINDS, Rows
from sagann.train.own_metrics import check_own_metrics, measure_own
from tests.train.runs import community_graph, values_graph

CONFIG = TrainConfig(epochs=2, device="cpu")


def median_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().median()


class MeanError:
    """Gathers slabs, as a metric of torchmetrics does."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.total = 0.0

    def reset(self) -> None:
        self.sizes, self.total = [], 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.sizes.append(len(outputs))
        self.total += float((outputs - targets).abs().sum())

    def compute(self) -> Tensor:
        return torch.tensor(self.total / sum(self.sizes))


def test_they_are_measured_on_every_split_and_reported(tmp_path: Any) -> None:
    graph, gathered = values_graph(), MeanError()
    own = {"median_error": median_error, "mean_error": gathered}
    trainer = Trainer(ModelConfig(hidden=8), graph, CONFIG, metrics=own, run_dir=tmp_path)
    result = trainer.fit()
    assert graph.targets is not None
    for split, found in result.metrics.items():
        assert set(found) == {*KINDS["regression"].metrics, *own}
        mask = graph.splits[split]
        assert found["median_error"] == pytest.approx(
            float((trainer.predict() - graph.targets)[mask].abs().median()), rel=1e-6
        )
        assert found["mean_error"] == pytest.approx(found["mae"], rel=1e-6)
    assert load_run(tmp_path, metrics=own).evaluate(graph) == result.metrics
    assert set(load_run(tmp_path).evaluate(graph)["test"]) == set(KINDS["regression"].metrics)
    assert "median_error" not in result.history[-1].metrics["val"]


def test_classes_are_given_as_ids() -> None:
    graph = community_graph()

    def wrong(outputs: Tensor, labels: Tensor) -> float:
        assert outputs.shape == (len(labels), 3)
        return float((outputs.argmax(1) != labels).float().mean())

    found = Trainer(ModelConfig(hidden=8), graph, CONFIG, metrics={"wrong": wrong}).evaluate()
    assert found["test"]["wrong"] == pytest.approx(1 - found["test"]["accuracy"])


def test_objects_get_slabs_and_functions_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.train.metrics.CHECKED_AT_ONCE", 2 * 7)
    outputs, targets = torch.randn(50, 2), torch.randn(20, 2)
    rows, gathered = torch.arange(0, 40, 2), MeanError()
    own = {"mean": gathered, "median": median_error, "again": gathered}
    found = measure_own(own, Rows(outputs, rows, 20), targets)
    assert gathered.sizes == [7, 7, 6]
    assert (
        found["mean"] * 2 == found["again"] * 2 == pytest.approx(float((outputs[rows] - targets).abs().sum()) / 10)
    )
    assert found["median"] == float((outputs[rows] - targets).abs().median())
    assert measure_own({"none": lambda z, y: float("nan")}, Rows(outputs, rows, 20), targets) == {}
    with pytest.raises(InputError, match=r"a metric must give a number: Tensor \[20, 2\] \(in metric 'all'\)"):
        measure_own({"all": lambda z, y: z}, Rows(outputs, rows, 20), targets)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"mae": median_error}, "'mae', expected a word other than loss, accuracy"),
        ({"val/error": median_error}, "'val/error', expected a word"),
        ({"error": 3}, r"a metric cannot be called: 'error' is 3 \(in here\)"),
        ([median_error], "a list, expected Mapping"),
    ],
)
def test_what_is_no_metric_is_refused(metrics: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_own_metrics(metrics, where="here")


class Synced:
    """Adds what all processes have counted, as torchmetrics does where torch.distributed is set up."""

    distributed_available_fn = staticmethod(lambda: True)

    def reset(self) -> None:
        self.count = 0

    def update(self, outputs: Tensor, answers: Tensor) -> None:
        self.count += len(answers)

    def compute(self) -> float:
        assert not self.distributed_available_fn(), "it would wait for workers that measure nothing"
        return float(self.count)


def test_a_metric_of_torchmetrics_waits_for_no_other_process() -> None:
    answers = torch.zeros(7, dtype=torch.int64)
    assert measure_own({"count": Synced()}, Rows(torch.rand(7, 3), None, 7), answers) == {"count": 7.0}
