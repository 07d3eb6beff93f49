"""Reporters, and the history of a run."""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sagann.errors import InputError, MissingDependencyError
from sagann.hybrid.manager import TrainerWork
from sagann.runtime.tiered import TierCounts, Traffic
from sagann.train import EpochRecord, History
from sagann.train.reporter import TensorBoardReporter
from tests.train.runs import Heard, trainer_of, written_lines

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
        "sagann.train.trainable.find_spec", lambda name: None if name == "tensorboard" else found(name)
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


def epochs(num_epochs: int, *, eval_every: int = 1) -> list[EpochRecord]:
    return [
        EpochRecord(
            epoch=epoch,
            loss=1 / epoch,
            epoch_s=0.1,
            lr=0.01,
            metrics={}
            if epoch % eval_every
            else {"train": {"loss": 0.9 / epoch}, "val": {"loss": 1.1 / epoch, "accuracy": 1 - 1 / epoch}},
        )
        for epoch in range(1, num_epochs + 1)
    ]


def test_rows_are_the_lines_of_the_run_folder(tmp_path: Path) -> None:
    trainer = trainer_of(epochs=3, run_dir=tmp_path / "run")
    assert list(trainer.history) == []
    assert repr(trainer.history) == "History(0 epochs)"
    trainer.fit()
    lines = written_lines(tmp_path / "run")
    assert trainer.history.rows() == lines
    assert trainer.history[-1]["val/accuracy"] == lines[2]["val/accuracy"]
    assert trainer.history[1:].rows() == lines[1:]
    assert repr(trainer.history).startswith("History(3 epochs: loss, epoch_s, lr, num_edges, train/loss")


def test_a_resumed_run_has_the_epochs_before(tmp_path: Path) -> None:
    trainer_of(epochs=2, run_dir=tmp_path / "run").fit()
    more = trainer_of(epochs=4, run_dir=tmp_path / "run")
    result = more.fit(resume=True)
    assert [row["epoch"] for row in more.history] == [1, 2, 3, 4]
    assert list(more.history) == list(result.history)
    assert "epoch=4 of 4" in repr(more)


def test_a_table_of_pandas() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install sagann[pandas]")
    table = History(epochs(4, eval_every=2)).to_pandas()
    assert table.index.name == "epoch"
    assert list(table.index) == [1, 2, 3, 4]
    assert list(table["loss"]) == [1, 1 / 2, 1 / 3, 1 / 4]
    assert table["val/accuracy"].isna().tolist() == [True, False, True, False]
    assert len(History([]).to_pandas()) == 0


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.train.reporter.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pandas cannot be imported .*sagann\[pandas\]"):
        History(epochs(1)).to_pandas()


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = History(epochs(4)).plot(tmp_path / "history.png")
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")
    losses, scores = figure.axes
    assert [line.get_label() for line in losses.get_lines()] == ["loss", "train/loss", "val/loss"]
    assert [line.get_label() for line in scores.get_lines()] == ["val/accuracy"]
    assert losses.get_lines()[0].get_xydata().tolist() == [[epoch, 1 / epoch] for epoch in range(1, 5)]
    assert (losses.get_ylabel(), scores.get_ylabel()) == ("loss", "accuracy")
    assert [text.get_text() for text in losses.get_legend().get_texts()] == [
        "loss",
        "train/loss",
        "val/loss",
        "val/accuracy",
    ]


def test_axes_of_ones_own_are_drawn_into() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    assert History(epochs(4, eval_every=2)).plot(axes) is figure
    assert axes.get_lines()[2].get_xdata().tolist() == [2, 4]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match=r"nothing to draw: no epoch has ended .*Call fit first"):
        History([]).plot()
    with pytest.raises(InputError, match=r"a int, expected str or PathLike or None \(in History\.plot\)"):
        History(epochs(1)).plot(3)


def test_the_values_of_all_epochs_are_given_by_their_name() -> None:
    trainer = trainer_of(epochs=3, eval_every=2)
    result = trainer.fit()
    for history in (trainer.history, result.history):
        assert history["loss"] == [record.loss for record in result.history]
        assert history["epoch"] == [1, 2, 3]
        assert [value is None for value in history["val/accuracy"]] == [True, False, False]
        with pytest.raises(
            InputError, match=r"no epoch has a value of that name: 'val/acuracy'.*Did you mean 'val/accuracy'"
        ):
            history["val/acuracy"]
    assert result.history[-1].epoch == 3
    assert len(result.history[:2]) == 2


PLAIN = EpochRecord(
    epoch=3,
    loss=0.1,
    epoch_s=0.2,
    lr=0.3,
    num_edges=4,
    metrics={"val": {"loss": 0.5, "accuracy": 1.0}, "train": {"loss": 0.25}},
)
TRAFFIC = Traffic(
    hot=TierCounts(rows=3, num_bytes=96), cold=TierCounts(rows=1, num_bytes=32), cold_reads=1, cold_read_bytes=32
)
WORK = TrainerWork(
    names=("host", "accelerator0"),
    seeds={"host": 30, "accelerator0": 10},
    train_s={"host": 1.5, "accelerator0": 0.5},
    idle_s={"host": 0.0, "accelerator0": 1.0},
    transfer_s={"host": 0.0, "accelerator0": 0.25},
    sample_s=0.1,
    load_s=0.2,
    num_moves=3,
    why="2 seeds go to the processor: estimated 1 s per iteration, was 2 s.",
)
RECORDS = {
    "plain": PLAIN,
    "tiers": replace(PLAIN, extra=TRAFFIC.to_json()),
    "trainers": replace(PLAIN, extra=WORK.to_json()),
    "simulated": replace(PLAIN, extra=replace(WORK, simulation_s={"host": 0.0, "accelerator0": 9.5}).to_json()),
}


def line_of(name: str) -> dict[str, Any]:
    return json.loads(json.dumps(RECORDS[name].to_json()))


@pytest.mark.parametrize("name", RECORDS)
def test_a_line_and_back(name: str) -> None:
    assert EpochRecord.from_json(line_of(name)) == RECORDS[name]
    assert line_of(name)["val/accuracy"] == 1.0
    assert line_of(name).get("trainer_simulation_s") == ([0.0, 9.5] if name == "simulated" else None)


def test_a_line_that_lacks_a_value_is_refused() -> None:
    values = line_of("tiers")
    del values["num_edges"]
    with pytest.raises(KeyError):
        EpochRecord.from_json(values)
