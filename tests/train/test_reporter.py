from __future__ import annotations

import importlib.util
import json
import logging
import warnings

import pytest

from sagann.errors import MissingDependencyError
from sagann.runtime.tiered import TierCounts, Traffic
from sagann.train import EpochRecord
from tests.train.runs import trainer_of


def test_every_epoch_is_in_the_events(tmp_path):
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        # The package warns of its own use of deprecated names, when it is imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    result = trainer_of(run_dir=tmp_path, epochs=4, tensorboard=True).fit()
    trainer_of(run_dir=tmp_path, epochs=6, tensorboard=True).fit(resume=True)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    losses = events.Scalars("run/loss")
    assert [event.step for event in losses] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in losses][:4] == pytest.approx([record.loss for record in result.history])
    assert {"run/lr", "run/epoch_s", "val/accuracy", "train/loss"} <= set(events.Tags()["scalars"])


def test_without_the_package_it_is_refused_before_training(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "sagann.train.trainer.find_spec", lambda name: None if name == "tensorboard" else found(name)
    )
    with pytest.raises(MissingDependencyError, match=r"pip install 'sagann\[tensorboard\]'"):
        trainer_of(run_dir=tmp_path, tensorboard=True)


class Recorder:
    """A reporter that writes down what it is told."""

    def __init__(self):
        self.calls = []

    def on_start(self, info):
        self.calls.append(("start", info))

    def on_epoch(self, record):
        self.calls.append(("epoch", record))

    def on_end(self, result):
        self.calls.append(("end", result))

    def on_message(self, text):
        self.calls.append(("message", text))

    def of(self, kind):
        return [value for name, value in self.calls if name == kind]


def test_the_reporter_is_told_of_everything():
    recorder = Recorder()
    result = trainer_of(epochs=3, reporter=recorder).fit()
    assert [name for name, _ in recorder.calls] == ["start", "epoch", "epoch", "epoch", "end"]
    (info,) = recorder.of("start")
    assert (info.num_vertices, info.num_edges, info.num_hops) == (90, 540, 2)
    assert (info.epochs, info.first_epoch, info.monitor, info.device) == (3, 1, "val/accuracy", "cpu")
    assert recorder.of("epoch") == list(result.history)
    assert recorder.of("end") == [result]


def test_by_default_messages_are_logged(caplog):
    with caplog.at_level(logging.WARNING, logger="sagann.train"):
        trainer_of(epochs=1, tensorboard=True).fit()
    assert "TensorBoard events are not written: the Trainer has no run folder." in caplog.text


def test_a_line_of_metrics_and_back():
    metrics = {"val": {"loss": 0.5, "accuracy": 1.0}, "train": {"loss": 0.25}}
    record = EpochRecord(epoch=3, loss=0.1, epoch_s=0.2, lr=0.3, metrics=metrics)
    line = record.to_json()
    assert line["val/accuracy"] == 1.0
    assert EpochRecord.from_json(json.loads(json.dumps(line))) == record


def test_a_line_of_a_tiered_run_and_back():
    hot, cold = TierCounts(rows=3, num_bytes=96), TierCounts(rows=1, num_bytes=32)
    traffic = Traffic(hot=hot, cold=cold, cold_reads=1, cold_read_bytes=32)
    record = EpochRecord(epoch=3, loss=0.1, epoch_s=0.2, lr=0.3, metrics={"val": {"loss": 0.5}}, traffic=traffic)
    line = json.loads(json.dumps(record.to_json()))
    assert (line["hot_rows"], line["cold_bytes"], line["val/loss"]) == (3, 32, 0.5)
    assert EpochRecord.from_json(line) == record
    with pytest.raises(TypeError, match="found -1"):
        EpochRecord.from_json({**line, "cold_rows": -1})
    del line["cold_reads"]
    with pytest.raises(KeyError):
        EpochRecord.from_json(line)
