"""Progress within an epoch: its sums, and what a checkpoint may say of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sagann.train import EpochProgress
from sagann.train.checkpoint import Position
from sagann.train.epoch_source import TrainStep

SUMS = {"loss": 0.5, "num_labelled": 8, "num_edges": 40, "train_s": 1.5}


def step_of(num_labelled: int, num_edges: int) -> TrainStep:
    return TrainStep(loss=lambda: torch.zeros(()), num_labelled=num_labelled, num_edges=num_edges)


def test_the_note_is_that_of_the_last_step() -> None:
    progress = EpochProgress(epoch=2, num_batches=3).after(step_of(3, 10), loss=1.0, train_s=0.5)
    assert progress.note == ""
    noted = TrainStep(loss=lambda: torch.zeros(()), num_labelled=1, num_edges=1, note="nothing is moved")
    assert progress.after(noted, loss=1.0, train_s=0.5).note == "nothing is moved"
    assert "note" not in progress.state_dict()


def test_every_batch_counts_as_often_as_it_has_labelled_vertices() -> None:
    progress = EpochProgress(epoch=2, num_batches=2)
    progress = progress.after(step_of(3, 10), loss=1.0, train_s=0.5)
    assert (progress.batch, progress.is_whole) == (1, False)
    progress = progress.after(step_of(1, 5), loss=3.0, train_s=2.0)
    expected = EpochProgress(epoch=2, num_batches=2, batch=2, loss=1.5, num_labelled=4, num_edges=15, train_s=2.0)
    assert progress == expected
    assert progress.is_whole


def test_a_state_and_back() -> None:
    progress = EpochProgress(epoch=3, num_batches=5, batch=2, **SUMS)
    assert progress.state_dict() == SUMS
    assert EpochProgress.from_state(SUMS, Position(2, batch=2), num_batches=5) == progress


@pytest.mark.parametrize(
    ("change", "batch", "problem"),
    [
        ({}, 5, "progress is that of 5 batches, expected fewer than 5"),
        ({"more": 1}, 2, "progress.more is unknown to the run"),
        ({"num_labelled": 1}, 2, "progress.num_labelled is 1, expected an integer from 2 to 90"),
        ({"num_labelled": 91}, 2, "progress.num_labelled is 91, expected an integer from 2 to 90"),
        ({"num_labelled": 8.0}, 2, "progress.num_labelled is 8.0, expected an integer from 2 to 90"),
        ({"num_edges": -1}, 2, "progress.num_edges is -1, expected an integer from 0"),
        ({"num_edges": True}, 2, "progress.num_edges is True, expected an integer from 0"),
        ({"loss": math.nan}, 2, "progress.loss is nan, expected a finite number$"),
        ({"loss": "low"}, 2, "progress.loss is 'low', expected a finite number$"),
        ({"train_s": -1.0}, 2, "progress.train_s is -1.0, expected a finite number of at least 0"),
        ({"train_s": math.inf}, 2, "progress.train_s is inf, expected a finite number of at least 0"),
    ],
)
def test_sums_that_no_epoch_has_are_refused(change: dict[str, Any], batch: int, problem: str) -> None:
    def require(state: Any, position: Position) -> None:
        EpochProgress.require_state(state, position, num_batches=5, num_answers=90, name="progress")

    require(SUMS, Position(2, batch=4))
    # That of a likelihood, for example.
    require({**SUMS, "loss": -0.5}, Position(2, batch=4))
    with pytest.raises(ValueError, match=problem):
        require({**SUMS, **change}, Position(2, batch=batch))
    with pytest.raises(ValueError, match="progress is a NoneType, expected a mapping"):
        require(None, Position(2, batch=2))
