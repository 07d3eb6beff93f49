"""Checkpoints that are written because epochs are long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sagann.train import saver
from sagann.train.checkpoint import CheckpointFolder, Position
from sagann.train.session import TrainSession
from tests.train.runs import trainer_of

pytestmark = pytest.mark.usefixtures("naive")


class Clock:
    """A clock that only training and checkpoints move on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


def saved_at(
    monkeypatch: pytest.MonkeyPatch, work: str, work_s: float, cost_s: float, **options: Any
) -> list[Position]:
    """Where a run of two or more epochs is saved, by a clock that only a method of the session and checkpoints move on."""
    clock, saved = Clock(), []
    monkeypatch.setattr(saver, "time", clock)
    do, write = getattr(TrainSession, work), CheckpointFolder.write

    def timed(session: TrainSession, *given: Any, **named: Any) -> Any:
        clock.now_s += work_s
        return do(session, *given, **named)

    def timed_write(folder: CheckpointFolder, checkpoint: Any) -> Path:
        clock.now_s += cost_s
        saved.append(Position.of(checkpoint))
        return write(folder, checkpoint)

    monkeypatch.setattr(TrainSession, work, timed)
    monkeypatch.setattr(CheckpointFolder, "write", timed_write)
    trainer_of(checkpoint_every=5, **options).fit()
    return saved


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
    saved = saved_at(monkeypatch, "run_epoch", epoch_s, cost_s, run_dir=tmp_path, epochs=10)
    assert saved == [Position(epoch) for epoch in expected]


@pytest.mark.parametrize(
    ("batch_s", "cost_s", "expected"),
    [
        # Epochs of four batches are shorter than 4 s.
        (0.9, 0.0, [(1, 1), (2, 0)]),
        (2.0, 0.0, [(0, 2), (1, 0), (1, 2), (2, 0)]),
        (60.0, 0.0, [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]),
        # A checkpoint costs 5 s: the next one comes after 100 s. A run that ends is saved.
        (60.0, 5.0, [(0, 1), (0, 3), (1, 1), (1, 3), (2, 0)]),
    ],
)
def test_batches_are_saved_where_epochs_are_long(
    batch_s: float, cost_s: float, expected: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"run_dir": tmp_path, "epochs": 2, "sample": (4, 3), "batch_size": 8}
    assert saved_at(monkeypatch, "_step", batch_s, cost_s, **options) == [Position(*at) for at in expected]
