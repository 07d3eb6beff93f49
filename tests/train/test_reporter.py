from __future__ import annotations

import importlib.util
import json
import logging
import warnings

import pytest

from sagann.errors import MissingDependencyError
from sagann.runtime.tiered import TierCounts, Traffic
from sagann.train import EpochRecord
from sagann.train.reporter import TensorBoardReporter
from tests.train.runs import trainer_of
from tests.train.test_trainer_work import WORK


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
        "sagann.train.assembly.find_spec", lambda name: None if name == "tensorboard" else found(name)
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

    def on_batch(self, progress):
        self.calls.append(("batch", progress))

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


def test_the_reporter_is_told_of_every_batch_that_others_follow():
    recorder = Recorder()
    result = trainer_of(epochs=2, sample=(4, 3), batch_size=8, reporter=recorder).fit()
    assert [name for name, _ in recorder.calls if name != "message"] == [
        "start",
        *["batch"] * 3,
        "epoch",
        *["batch"] * 3,
        "epoch",
        "end",
    ]
    batches = recorder.of("batch")
    assert [(each.epoch, each.batch, each.num_batches) for each in batches] == [
        (epoch, batch, 4) for epoch in (1, 2) for batch in (1, 2, 3)
    ]
    assert [each.num_labelled for each in batches[:3]] == [8, 16, 24]
    for epoch, record in enumerate(result.history):
        of_epoch = batches[3 * epoch : 3 * epoch + 3]
        assert 0 < of_epoch[0].num_edges < of_epoch[1].num_edges < of_epoch[2].num_edges < record.num_edges
        assert 0 < of_epoch[0].train_s < of_epoch[1].train_s < of_epoch[2].train_s < record.epoch_s
    # At most 4 edges for each of 30 seeds, and 3 for each of their sources and of themselves.
    assert all(record.num_edges <= 30 * 4 + 30 * 5 * 3 for record in result.history)


def test_edges_on_the_whole_graph_are_those_of_all_hops():
    assert [record.num_edges for record in trainer_of(epochs=2).fit().history] == [2 * 540] * 2


def test_by_default_messages_are_logged(caplog):
    with caplog.at_level(logging.WARNING, logger="sagann.train"):
        trainer_of(epochs=1, tensorboard=True).fit()
    assert "TensorBoard events are not written: the Trainer has no run folder." in caplog.text


def test_a_line_of_metrics_and_back():
    metrics = {"val": {"loss": 0.5, "accuracy": 1.0}, "train": {"loss": 0.25}}
    record = EpochRecord(epoch=3, loss=0.1, epoch_s=0.2, lr=0.3, num_edges=4, metrics=metrics)
    line = record.to_json()
    assert line["num_edges"] == 4
    assert line["val/accuracy"] == 1.0
    assert EpochRecord.from_json(json.loads(json.dumps(line))) == record


def test_the_throughput_of_sampled_epochs_is_edges_over_seconds(tmp_path):
    trainer = trainer_of(epochs=2, run_dir=tmp_path / "run", sample=(4, 3), batch_size=12)
    for record, line in zip(trainer.fit().history, trainer.history, strict=True):
        assert record.mteps == pytest.approx(1e-6 * record.num_edges / record.epoch_s)
        assert line["mteps"] == record.mteps
        assert EpochRecord.from_json(json.loads(json.dumps(line))) == record
    # An epoch on the whole graph walks edges that are not drawn.
    assert trainer_of(epochs=1).fit().history[0].mteps is None


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


def test_a_line_without_a_number_of_edges_is_read():
    line = {"epoch": 1, "loss": 0.5, "epoch_s": 0.1, "lr": 0.01}
    assert EpochRecord.from_json(line).num_edges == 0
    with pytest.raises(TypeError, match=r"expected an integer from 0 to .* for num_edges"):
        EpochRecord.from_json({**line, "num_edges": -1})


def test_numbers_and_words_of_several_trainers_are_events(tmp_path):
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = TensorBoardReporter(tmp_path, first_epoch=1)
    events.on_epoch(EpochRecord(epoch=1, loss=0.5, epoch_s=0.2, lr=0.3, trainers=WORK))
    events.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert found.Scalars("run/trainer_seeds/1")[0].value == WORK.seeds[1]
    assert found.Tensors("run/trainer_why/text_summary")[0].tensor_proto.string_val == [WORK.why.encode()]
