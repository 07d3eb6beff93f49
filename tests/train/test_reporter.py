from __future__ import annotations

import importlib.util
import json
import logging
import warnings

import pytest

from sagann.errors import MissingDependencyError
from sagann.train import EpochRecord
from sagann.train.reporter import TensorBoardReporter
from tests.train.runs import Heard, trainer_of
from tests.train.test_history import WORK

pytestmark = pytest.mark.usefixtures("naive")


@pytest.fixture
def accumulator():
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        # The package warns of its own use of deprecated names, when it is imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    return EventAccumulator


def test_every_epoch_is_in_the_events(tmp_path, accumulator):
    result = trainer_of(run_dir=tmp_path, epochs=4, tensorboard=True).fit()
    trainer_of(run_dir=tmp_path, epochs=6, tensorboard=True).fit(resume=True)
    events = accumulator(str(tmp_path / "events")).Reload()
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


def test_the_reporter_is_told_of_everything():
    heard = Heard()
    result = trainer_of(epochs=3, reporter=heard).fit()
    info = heard.info
    assert (info.num_vertices, info.num_edges, info.num_hops) == (90, 540, 2)
    assert (info.epochs, info.first_epoch, info.monitor, info.device) == (3, 1, "val/accuracy", "cpu")
    assert (heard.batches, heard.records, heard.results) == ([], list(result.history), [result])


def test_the_reporter_is_told_of_every_batch_that_others_follow():
    heard = Heard()
    result = trainer_of(epochs=2, sample=(4, 3), batch_size=8, reporter=heard).fit()
    assert [(each.epoch, each.batch, each.num_batches, each.num_labelled) for each in heard.batches] == [
        (epoch, batch, 4, 8 * batch) for epoch in (1, 2) for batch in (1, 2, 3)
    ]
    for epoch, record in enumerate(result.history):
        of_epoch = heard.batches[3 * epoch : 3 * epoch + 3]
        assert 0 < of_epoch[0].num_edges < of_epoch[1].num_edges < of_epoch[2].num_edges < record.num_edges
        assert 0 < of_epoch[0].train_s < of_epoch[1].train_s < of_epoch[2].train_s < record.epoch_s
    # At most 4 edges for each of 30 seeds, and 3 for each of their sources and of themselves.
    assert all(record.num_edges <= 30 * 4 + 30 * 5 * 3 for record in result.history)


def test_by_default_messages_are_logged(caplog):
    with caplog.at_level(logging.WARNING, logger="sagann.train"):
        trainer_of(epochs=1, tensorboard=True).fit()
    assert "TensorBoard events are not written: the Trainer has no run folder." in caplog.text


def test_the_throughput_of_sampled_epochs_is_edges_over_seconds(tmp_path):
    trainer = trainer_of(epochs=2, run_dir=tmp_path / "run", sample=(4, 3), batch_size=12)
    for record, line in zip(trainer.fit().history, trainer.history.rows(), strict=True):
        assert record.extra["mteps"] == pytest.approx(1e-6 * record.num_edges / record.epoch_s)
        assert line["mteps"] == record.extra["mteps"]
        assert EpochRecord.from_json(json.loads(json.dumps(line))) == record
    # An epoch on the whole graph walks all edges in each hop, which are not drawn.
    (record,) = trainer_of(epochs=1).fit().history
    assert (record.num_edges, record.extra) == (2 * 540, {})


def test_numbers_and_words_of_several_trainers_are_events(tmp_path, accumulator):
    events = TensorBoardReporter(tmp_path, first_epoch=1)
    events.on_epoch(EpochRecord(epoch=1, loss=0.5, epoch_s=0.2, lr=0.3, extra=WORK.to_json()))
    events.close()
    found = accumulator(str(tmp_path)).Reload()
    assert found.Scalars("run/trainer_seeds/1")[0].value == [*WORK.seeds.values()][1]
    assert found.Tensors("run/trainer_why/text_summary")[0].tensor_proto.string_val == [WORK.why.encode()]
