"""Progress within an epoch: its sums, and what a checkpoint may say of them."""

from __future__ import annotations

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
