"""A disk that is full in the midst of a sampled epoch: one error that says so, and the run goes on bitwise."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sagann.errors import CheckpointError
from sagann.nn import ModelConfig
from sagann.train.checkpoint import CheckpointFolder, Position
from tests.threads import left_threads
from tests.train.runs import Heard, assert_same_bits, numbers_of, trainer_of, weights_of

SAGE = ModelConfig(model="sage", hidden=8)
SAMPLED: dict[str, Any] = {"sample": (4, 3), "batch_size": 8, "epochs": 4, "batches_ahead": 4}


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
        trainer_of(SAGE, run_dir=run, reporter=Heard(2, 2, fill), **SAMPLED).fit()
    # What was saved within the epoch is whole.
    assert max(CheckpointFolder(run / "checkpoints", keep=2).positions()) == Position(1, 1)
    assert not (run / "metrics.json").exists()
    others.unlink()
    assert not left_threads()
    resumed = trainer_of(SAGE, run_dir=run, **SAMPLED)
    assert numbers_of(resumed.resume()) == expected
    assert_same_bits(weights_of(resumed.model), weights_of(whole.model))
