from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sagann.errors import InputError
from sagann.nn import ModelConfig
from sagann.train import TrainConfig, Trainer, load_run
from sagann.train.losses import default_loss
from sagann.train.metrics import (
    KINDS,
    Rows,
    check_own_metrics,
    compute_metrics,
    finite,
    measure_own,
    quick_metrics,
)
from sagann.train.resources import reproducible
from tests.train.runs import community_graph, predictor_of, seeded_model, values_graph

pytestmark = pytest.mark.usefixtures("naive")


def f1(predicted: list[bool], truth: list[bool]) -> float:
    both = sum(p and t for p, t in zip(predicted, truth, strict=True))
    wrong = sum(p != t for p, t in zip(predicted, truth, strict=True))
    return 2 * both / (2 * both + wrong) if both + wrong else 0.0


def area(scores: list[float], truth: list[bool]) -> float | None:
    """The probability that a positive scores above a negative, by counting pairs."""
    pairs = [
        (a, b) for a, t in zip(scores, truth, strict=True) if t for b, u in zip(scores, truth, strict=True) if not u
    ]
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs) if pairs else None


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@st.composite
def single_label(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    num_classes = draw(st.integers(1, 5))
    n = draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    # Few distinct logits, so that scores tie.
    logits = torch.randint(-2, 3, (n, num_classes), generator=generator).float()
    return logits, torch.randint(num_classes, (n,), generator=generator)


@settings(deadline=None, max_examples=60)
@given(single_label())
def test_single_label_metrics_equal_those_counted_by_hand(case):
    logits, labels = case
    num_classes = logits.shape[1]
    found = compute_metrics(logits, labels, task="classification")

    predicted = [row.index(max(row)) for row in logits.tolist()]
    truth = labels.tolist()
    correct = mean([float(p == t) for p, t in zip(predicted, truth, strict=True)])
    occurring = sorted({*predicted, *truth})
    # As precise as the metric's: rows with different logits may have probabilities that differ by rounding alone.
    scores = torch.softmax(logits.double(), 1).tolist()
    areas = [
        area([row[c] for row in scores], [t == c for t in truth])
        for c in ([1] if num_classes == 2 else range(num_classes))
    ]
    defined = [value for value in areas if value is not None]
    expected = {
        "loss": mean([-math.log(scores[v][t]) for v, t in enumerate(truth)]),
        "accuracy": correct,
        "micro_f1": correct,
        "macro_f1": mean([f1([p == c for p in predicted], [t == c for t in truth]) for c in occurring]),
        **({"roc_auc": mean(defined)} if defined else {}),
    }
    assert found == pytest.approx(expected, abs=1e-5)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(1, 10), st.integers(0, 2**20))
def test_multi_label_metrics_equal_those_counted_by_hand(num_classes, n, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-2, 3, (n, num_classes), generator=generator).float() + 0.25
    labels = torch.randint(2, (n, num_classes), generator=generator).to(torch.uint8)
    found = compute_metrics(logits, labels, task="multi-label")

    predicted = [[value > 0 for value in row] for row in logits.tolist()]
    truth = labels.bool().tolist()
    columns = list(zip(zip(*predicted, strict=True), zip(*truth, strict=True), strict=True))
    flat = [(p, t) for ps, ts in columns for p, t in zip(ps, ts, strict=True)]
    areas = [area(logits[:, c].tolist(), labels[:, c].bool().tolist()) for c in range(num_classes)]
    defined = [value for value in areas if value is not None]
    probability = torch.sigmoid(logits)
    chosen = torch.where(labels.bool(), probability, 1 - probability)
    expected = {
        "loss": float(-chosen.log().mean()),
        "accuracy": mean([float(p == t) for p, t in flat]),
        "micro_f1": f1([p for p, _ in flat], [t for _, t in flat]),
        "macro_f1": mean([f1(list(p), list(t)) for p, t in columns]),
        **({"roc_auc": mean(defined)} if defined else {}),
    }
    assert found == pytest.approx(expected, abs=1e-5)


def test_no_vertex_no_metric():
    assert compute_metrics(torch.empty(0, 3), torch.empty(0, dtype=torch.int64), task="classification") == {}


@pytest.mark.parametrize("task", ["classification", "multi-label", "regression"])
def test_slabs_of_chosen_rows_measure_the_same(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(50, 4, generator=generator) + 1e3 * (task == "regression")
    rows = torch.randperm(50, generator=generator)[:31]
    answers = {
        "classification": torch.arange(50) % 4,
        "multi-label": torch.randint(2, (50, 4), generator=generator).to(torch.uint8),
        "regression": torch.randn(50, 4, generator=generator) + 1e3,
    }[task]
    whole = compute_metrics(outputs[rows], answers[rows], task=task)
    assert set(whole) == set(KINDS[task].metrics)
    monkeypatch.setattr("sagann.train.metrics.CHECKED_AT_ONCE", 4 * 7)
    monkeypatch.setattr("sagann.train.metrics._SCORES_AT_ONCE", 31 * 3)
    assert compute_metrics(outputs, answers[rows], task=task, rows=rows) == pytest.approx(whole, rel=1e-6)


class _Largest(TorchDispatchMode):
    """Notes how large the largest tensor is that anything makes."""

    num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.num_bytes = max(self.num_bytes, tensor.nbytes)
        return made


def test_no_vertex_is_compared_with_every_pair_of_classes():
    logits, labels = torch.randn(5000, 24), torch.randint(24, (5000,))
    with reproducible(True, torch.device("cpu")), _Largest() as largest:
        found = compute_metrics(logits, labels, task="classification")
        assert torch.are_deterministic_algorithms_enabled()
    assert found == compute_metrics(logits, labels, task="classification")
    # Probabilities in float64 are the largest; the pairs would take 24 times as much.
    assert largest.num_bytes <= 2 * logits.nbytes


def test_vertices_of_unknown_label_are_not_measured():
    graph = replace(community_graph(), splits={})
    wrong = predictor_of().predict(graph) != graph.labels
    known = replace(graph, labels=graph.labels.masked_fill(wrong, -1))
    assert predictor_of().evaluate(known)["all"]["accuracy"] == 1.0


def test_a_split_without_a_vertex_is_absent():
    graph = community_graph()
    nothing = torch.zeros(90, dtype=torch.bool)
    graph = replace(graph, splits={**graph.splits, "val": nothing})
    trainer = Trainer(seeded_model(), graph, TrainConfig(epochs=2, device="cpu"))
    assert (trainer.monitor, trainer.weights) == ("train/loss", "last")
    assert set(trainer.fit().metrics) == {"train", "test"}
    with pytest.raises(InputError, match="'val/loss', the graph has the splits train, test"):
        Trainer(seeded_model(), graph, TrainConfig(monitor="val/loss"))


@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**31))
def test_metrics_of_values_equal_those_counted_by_hand(n: int, num_targets: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs, targets = (torch.randint(-3, 4, (n, num_targets), generator=generator).float() for _ in range(2))
    found = compute_metrics(outputs, targets, task="regression")
    pairs = list(zip(outputs.flatten().tolist(), targets.flatten().tolist(), strict=True))
    mse = mean([(a - b) ** 2 for a, b in pairs])
    scores = []
    for ours, true in zip(outputs.T.tolist(), targets.T.tolist(), strict=True):
        spread = sum((value - mean(true)) ** 2 for value in true)
        if len(set(true)) > 1:
            scores.append(1 - sum((a - b) ** 2 for a, b in zip(ours, true, strict=True)) / spread)
    expected = {"loss": mse, "mae": mean([abs(a - b) for a, b in pairs]), "rmse": mse**0.5}
    assert found == pytest.approx(expected | ({"r2": mean(scores)} if scores else {}), rel=1e-5)


def test_r2_of_constant_targets_is_left_out() -> None:
    # In single precision the mean of these is not their value.
    constant = torch.full((7, 1), 0.1)
    assert set(compute_metrics(torch.zeros(7, 1), constant, task="regression")) == {"loss", "mae", "rmse"}
    both = torch.cat([constant, torch.arange(7.0)[:, None]], dim=1)
    assert compute_metrics(both, both, task="regression", names=["r2"]) == {"r2": 1.0}
    assert compute_metrics(torch.ones(1, 1), torch.zeros(1, 1), task="regression", names=["r2"]) == {}


def test_a_loss_beyond_its_types_range_is_infinite_and_left_out_of_what_is_finite() -> None:
    found = compute_metrics(torch.zeros(2, 1), torch.tensor([[1e38], [-1.0]]), task="regression")
    assert found["loss"] == float("inf")
    assert found["rmse"] == pytest.approx(1e38 / 2**0.5)
    assert found["mae"] == pytest.approx(5e37)
    assert finite({"test": found | {"r2": float("nan")}}) == {"test": {"mae": found["mae"], "rmse": found["rmse"]}}


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


@pytest.mark.parametrize("at_once", [1 << 20, 12])
@pytest.mark.parametrize("task", ["classification", "multi-label", "regression"])
def test_quick_metrics_are_those_of_the_host(task: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.train.metrics.CHECKED_AT_ONCE", at_once)
    outputs, rows = torch.randn(40, 3), torch.arange(3, 36)
    answers = {
        "classification": torch.randint(3, (33,)),
        "multi-label": torch.randint(2, (33, 3), dtype=torch.uint8),
        "regression": torch.randn(33, 3),
    }[task]
    names, loss = ("loss", KINDS[task].quick), default_loss(task)
    expected = compute_metrics(outputs, answers, task=task, loss=loss, names=names, rows=rows)
    found = quick_metrics(outputs, answers, task=task, loss=loss, rows=rows)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, rel=1e-12)
    assert all(value.dtype == torch.float64 for value in found.values())


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
