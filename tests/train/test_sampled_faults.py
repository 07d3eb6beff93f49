"""Faults in the midst of a sampled epoch: one error that says what and where, and the run goes on bitwise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sagann.errors import CheckpointError
from sagann.nn import ModelConfig
from sagann.runtime.loading import stages
from sagann.runtime.loading.stages import StalledError
from sagann.train import EpochProgress, Reporter, Trainer, saver
from sagann.train.checkpoint import CheckpointFolder, Position
from tests.threads import left_threads
from tests.train.runs import assert_same_bits, numbers_of, trainer_of, weights_of

SAGE = ModelConfig(model="sage", hidden=8)
SAMPLED: dict[str, Any] = {"sample": (4, 3), "batch_size": 8, "epochs": 4, "batches_ahead": 4}


class At(Reporter):
    """Calls a function after a batch."""

    def __init__(self, epoch: int, batch: int, call: Callable[[], object]) -> None:
        self._place, self._call = (epoch, batch), call

    def on_batch(self, progress: EpochProgress) -> None:
        if (progress.epoch, progress.batch) == self._place:
            self._call()


@pytest.fixture
def every_batch_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches take long."""
    monkeypatch.setattr(saver, "_MOST_UNSAVED_S", 0.0)
    monkeypatch.setattr(saver, "_LEAST_SPACING", 0)


def check_goes_on(resumed: Trainer, whole: Trainer, expected: list[dict[str, Any]]) -> None:
    """The run ends as one that nothing happened to, and no thread is left."""
    assert not left_threads()
    assert numbers_of(resumed.resume()) == expected
    assert_same_bits(weights_of(resumed.model), weights_of(whole.model))


@pytest.mark.usefixtures("every_batch_saved")
def test_a_disk_that_is_full_within_an_epoch(small_disk: Path, tmp_path: Path) -> None:
    whole = trainer_of(SAGE, **SAMPLED)
    expected = numbers_of(whole.fit())
    others = small_disk / "others"

    def fill() -> None:
        with others.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    run = small_disk / "run"
    with pytest.raises(CheckpointError, match=r"the run folder cannot be written: .*No space left on device"):
        trainer_of(SAGE, run_dir=run, reporter=At(2, 2, fill), **SAMPLED).fit()
    # What was saved within the epoch is whole.
    assert max(CheckpointFolder(run / "checkpoints", keep=2).positions()) == Position(1, 1)
    assert not (run / "metrics.json").exists()
    others.unlink()
    check_goes_on(trainer_of(SAGE, run_dir=run, **SAMPLED), whole, expected)


def test_a_thread_that_dies_within_a_run_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trainer_of(SAGE, **SAMPLED)
    expected = numbers_of(whole.fit())
    work, dying = stages.Stages.hand_over, threading.Event()

    def hand_over(self: Any, stage: int, position: int, result: Any) -> None:
        if dying.is_set() and stage == 1:
            raise MemoryError("no room for a result")
        work(self, stage, position, result)

    options = {**SAMPLED, "checkpoint_every": 1}
    with monkeypatch.context() as patches:
        patches.setattr(stages.Stages, "hand_over", hand_over)
        with pytest.raises(StalledError) as caught:
            trainer_of(SAGE, run_dir=tmp_path / "run", reporter=At(2, 3, dying.set), **options).fit()
    assert "will not become ready: a thread has ended by MemoryError: no room for a result" in str(caught.value)
    assert isinstance(caught.value.__cause__, MemoryError)
    check_goes_on(trainer_of(SAGE, run_dir=tmp_path / "run", **options), whole, expected)
