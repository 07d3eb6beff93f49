"""Checkpoints that are written because epochs are long."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagann.train import saver
from sagann.train.checkpoint import CheckpointFolder, Position
from sagann.train.session import TrainSession
from tests.train.runs import trainer_of


class Clock:
    """A clock that only training and checkpoints move on."""

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

    def timed_epoch(session, **options):
        clock.now_s += epoch_s
        return run_epoch(session, **options)

    def timed_write(folder, checkpoint):
        clock.now_s += cost_s
        saved.append(checkpoint.position.epoch)
        return write(folder, checkpoint)

    monkeypatch.setattr(TrainSession, "run_epoch", timed_epoch)
    monkeypatch.setattr(CheckpointFolder, "write", timed_write)
    trainer_of(run_dir=tmp_path, epochs=10, checkpoint_every=5).fit()
    assert saved == expected


@pytest.mark.parametrize(
    ("batch_s", "cost_s", "expected"),
    [
        # Epochs of four batches are shorter than 4 s.
        (0.9, 0.0, [Position(1, 1), Position(2)]),
        (1.0, 0.0, [Position(1), Position(2)]),
        (2.0, 0.0, [Position(0, 2), Position(1), Position(1, 2), Position(2)]),
        (
            60.0,
            0.0,
            [*(Position(epoch, batch) for epoch in (0, 1) for batch in range(4) if epoch + batch), Position(2)],
        ),
        # A checkpoint costs 5 s: the next one comes after 100 s. A run that ends is saved.
        (60.0, 5.0, [Position(0, 1), Position(0, 3), Position(1, 1), Position(1, 3), Position(2)]),
    ],
)
def test_batches_are_saved_where_epochs_are_long(
    batch_s: float, cost_s: float, expected: list[Position], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, saved = Clock(), []
    monkeypatch.setattr(saver, "time", clock)
    step, write = TrainSession._step, CheckpointFolder.write

    def timed_step(session, *arguments):
        clock.now_s += batch_s
        return step(session, *arguments)

    def timed_write(folder, checkpoint):
        clock.now_s += cost_s
        saved.append(checkpoint.position)
        return write(folder, checkpoint)

    monkeypatch.setattr(TrainSession, "_step", timed_step)
    monkeypatch.setattr(CheckpointFolder, "write", timed_write)
    trainer_of(run_dir=tmp_path, epochs=2, checkpoint_every=5, sample=(4, 3), batch_size=8).fit()
    assert saved == expected
