from __future__ import annotations

from dataclasses import replace

import pytest

from sagann.errors import InputError
from sagann.nn import ModelConfig
from sagann.train.best import BestTracker
from tests.train.runs import Plain, community_graph, seeded_model, trainer_of, values_graph, without_split


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


def test_patience_never_stops_what_improves():
    result = trainer_of(seeded_model(Plain), epochs=20, lr=1e-4, patience=1, monitor="train/loss").fit()
    assert result.epochs == 20
    assert not result.stopped_early


def test_without_val_the_training_loss_is_monitored_and_the_last_weights_are_kept():
    trainer = trainer_of(graph=without_split(community_graph(), "val"))
    result = trainer.fit()
    assert trainer.monitor == "train/loss"
    assert result.weights == "last"
    assert set(result.metrics) == {"train", "test"}


def test_monitoring_an_absent_split_is_refused():
    with pytest.raises(
        InputError, match="the monitored split is not there: 'val/loss', the graph has the splits train"
    ):
        trainer_of(graph=without_split(community_graph(), "val"), monitor="val/loss")


def test_monitoring_an_undefined_metric_is_refused():
    graph = community_graph()
    one_class = graph.splits["val"] & (graph.labels == 0)
    graph = replace(graph, splits={**graph.splits, "val": one_class})
    with pytest.raises(InputError, match="the monitored metric is undefined: 'val/roc_auc' has no value"):
        trainer_of(graph=graph, monitor="val/roc_auc").fit()


def test_errors_are_better_the_lower_they_are():
    for metric, higher in (("loss", False), ("mae", False), ("rmse", False), ("r2", True), ("accuracy", True)):
        assert BestTracker(f"val/{metric}", keep_weights=False, patience=None).maximise is higher


def test_r2_of_a_constant_target_cannot_be_monitored():
    graph = values_graph()
    constant = graph.targets.masked_fill(graph.splits["val"], 2.0)
    with pytest.raises(InputError, match=r"'val/r2' has no value; .*R2 a target that varies there"):
        trainer_of(ModelConfig(hidden=8), replace(graph, targets=constant), monitor="val/r2").fit()
