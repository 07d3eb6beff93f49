from __future__ import annotations

import importlib.util
import warnings

import pytest

from sagann.errors import MissingDependencyError
from sagann.train import TrainConfig, Trainer
from tests.train.runs import community_graph, seeded_model


def trainer_of(run_dir, epochs=4):
    config = TrainConfig(epochs=epochs, device="cpu", tensorboard=True)
    return Trainer(seeded_model(), community_graph(), config, run_dir=run_dir)


def test_every_epoch_is_in_the_events(tmp_path):
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        # The package warns of its own use of deprecated names, when it is imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    result = trainer_of(tmp_path).fit()
    trainer_of(tmp_path, epochs=6).fit(resume=True)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    losses = events.Scalars("run/loss")
    assert [event.step for event in losses] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in losses][:4] == pytest.approx([record.loss for record in result.history])
    assert {"run/lr", "run/epoch_s", "val/accuracy", "train/loss"} <= set(events.Tags()["scalars"])


def test_without_the_package_it_is_refused_before_training(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "sagann.train.reporter.find_spec", lambda name: None if name == "tensorboard" else found(name)
    )
    with pytest.raises(MissingDependencyError, match=r"pip install 'sagann\[tensorboard\]'"):
        trainer_of(tmp_path)
