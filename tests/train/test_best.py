from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sagann.errors import InputError
from sagann.nn import ModelConfig
from sagann.train.best import BestTracker
from tests.train.runs import community_graph, trainer_of, values_graph

pytestmark = pytest.mark.usefixtures("naive")


def test_the_best_weights_are_kept_and_measured():
    result = trainer_of(epochs=30, lr=0.1, monitor="val/loss").fit()
    values = [record.metrics["val"]["loss"] for record in result.history]
    assert result.weights == "best"
    assert result.best_epoch == values.index(min(values)) + 1
    assert result.metrics["val"]["loss"] == min(values) < values[-1]


def test_the_last_weights_where_they_are_asked_for():
    result = trainer_of(epochs=5, lr=0.1, weights="last").fit()
    assert result.weights == "last"
    assert result.metrics["val"]["accuracy"] == result.history[-1].metrics["val"]["accuracy"]


def test_early_stopping():
    result = trainer_of(epochs=500, lr=0.1, patience=7, monitor="val/loss").fit()
    losses = [record.metrics["val"]["loss"] for record in result.history]
    assert result.stopped_early
    assert result.epochs == result.best_epoch + 7 < 500
    assert result.best_epoch == losses.index(min(losses)) + 1
    assert result.metrics["val"]["loss"] == pytest.approx(min(losses))


def test_monitoring_an_undefined_metric_is_refused():
    graph = community_graph()
    one_class = graph.splits["val"] & (graph.labels == 0)
    graph = replace(graph, splits={**graph.splits, "val": one_class})
    with pytest.raises(InputError, match="the monitored metric is undefined: 'val/roc_auc' has no value"):
        trainer_of(graph=graph, monitor="val/roc_auc").fit()


def test_of_equal_epochs_the_last_one_is_kept_and_patience_still_ends():
    tracker, model = BestTracker("val/accuracy", keep_weights=True, patience=3), nn.Linear(1, 1)
    for epoch, value in enumerate((0.5, 0.6, 0.6, 0.4), start=1):
        torch.nn.init.constant_(model.weight, epoch)
        tracker.update(epoch, {"val": {"accuracy": value}}, model)
        assert not tracker.exhausted
    assert (tracker.epoch, float(tracker.weights["weight"])) == (3, 3.0)
    tracker.update(5, {"val": {"accuracy": 0.6}}, model)
    assert (tracker.epoch, tracker.exhausted) == (5, True)


def rare_classes():
    """Labels of which untrained models predict about half for each vertex, and trained ones none."""
    labels = torch.zeros(300, 20, dtype=torch.uint8)
    labels[torch.arange(300), torch.randint(20, (300,), generator=torch.Generator().manual_seed(0))] = 1
    return replace(community_graph(300, multi_label=True), labels=labels, num_classes=20)


def test_the_default_monitor_of_rare_classes_keeps_weights_that_are_trained(caplog):
    result = trainer_of(ModelConfig(hidden=8), rare_classes(), lr=0.05).fit()
    scores = [record.metrics["val"]["micro_f1"] for record in result.history]
    assert scores.index(max(scores)) == 0
    assert result.best_epoch > 10
    assert not caplog.records


def test_a_run_whose_first_epoch_is_best_says_so_and_why(caplog):
    result = trainer_of(ModelConfig(hidden=8), rare_classes(), lr=0.05, monitor="val/micro_f1").fit()
    assert result.best_epoch == 1
    best = result.history[0].metrics["val"]["micro_f1"]
    assert f"val/micro_f1 was best in epoch 1 ({best:.4g})" in caplog.text
    assert f"In epoch 20 it is {result.history[-1].metrics['val']['micro_f1']:.4g}" in caplog.text
    assert f"to {result.history[-1].loss:.4g}. Lower lr, monitor another metric" in caplog.text


def test_r2_of_a_constant_target_cannot_be_monitored():
    graph = values_graph()
    constant = graph.targets.masked_fill(graph.splits["val"], 2.0)
    with pytest.raises(InputError, match=r"'val/r2' has no value; .*R2 a target that varies there"):
        trainer_of(ModelConfig(hidden=8), replace(graph, targets=constant), monitor="val/r2").fit()
