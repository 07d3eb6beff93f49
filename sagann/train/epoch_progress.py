"""EpochProgress: an epoch so far. Reports read it, and a checkpoint within an epoch holds its sums.

A resumed epoch goes on with these sums, so its line of metrics is that of an epoch without interruption.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sagann.train.epoch_source import TrainStep


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochProgress:
    """An epoch of which some batches are trained."""

    epoch: int
    "Number of the epoch, from 1."
    num_batches: int
    "Number of batches in the epoch; 1 for the whole graph."
    batch: int = 0
    "Number of batches that are trained."
    loss: float = 0.0
    "Mean loss of their labelled vertices, in training mode (with dropout). A loss of the user's may be negative."
    num_labelled: int = 0
    "Number of their labelled vertices: the seeds."
    num_edges: int = 0
    "Number of edges that their forward passes have walked, of all hops together."
    train_s: float = 0.0
    "Seconds of training, without checkpoints and reports; those before a resume count too."
    note: str = ""
    "What the last step says beside the numbers, as how trainers share the seeds; empty for nothing."

    @property
    def is_whole(self) -> bool:
        """Whether all batches are trained."""
        return self.batch == self.num_batches

    def after(self, step: TrainStep, *, loss: float, train_s: float) -> EpochProgress:
        """The progress after one step more, with the step's ``loss`` and all seconds so far."""
        num_labelled = self.num_labelled + step.num_labelled
        return replace(
            self,
            batch=self.batch + 1,
            loss=self.loss + (loss - self.loss) * (step.num_labelled / num_labelled),
            num_labelled=num_labelled,
            num_edges=self.num_edges + step.num_edges,
            train_s=train_s,
            note=step.note,
        )
