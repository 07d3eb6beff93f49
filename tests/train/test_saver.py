"""Checkpoints that are written because epochs are long."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagann.cli import signals
from sagann.train import saver
from sagann.train.checkpoint import CheckpointFolder
from sagann.train.session import TrainSession
from tests.train.runs import trainer_of


class Clock:
    """A clock that only epochs and checkpoints move on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("epoch_s", "cost_s", "expected"),
    [
        (0.1, 0.0, [5, 10]),
        # Two epochs are 4 s.
        (2.0, 0.0, [2, 4, 5, 7, 9, 10]),
        (60.0, 0.0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        # A checkpoint costs 10 s: the next one comes after 200 s.
        (60.0, 10.0, [1, 5, 9, 10]),
    ],
)
def test_long_epochs_are_saved_ahead_of_time(
    epoch_s: float, cost_s: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, saved = Clock(), []
    monkeypatch.setattr(saver, "time", clock)
    run_epoch, write = TrainSession.run_epoch, CheckpointFolder.write

    def timed_epoch(session):
        clock.now_s += epoch_s
        return run_epoch(session)

    def timed_write(folder, checkpoint):
        clock.now_s += cost_s
        saved.append(checkpoint.epoch)
        return write(folder, checkpoint)

    monkeypatch.setattr(TrainSession, "run_epoch", timed_epoch)
    monkeypatch.setattr(CheckpointFolder, "write", timed_write)
    trainer_of(run_dir=tmp_path, epochs=10, checkpoint_every=5).fit()
    assert saved == expected


def test_an_epoch_that_sigterm_gives_up_is_long_enough_for_each_to_be_saved() -> None:
    assert saver._MOST_UNSAVED_S <= signals._FINISH_S < signals._MOST_S
