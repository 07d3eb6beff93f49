"""Epoch sources: where a training session gets the work of an epoch.

Loss, optimizer, metrics, checkpoints and reports do not know whether the whole graph is trained on in memory, streamed, or by
mini-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from sagann.runtime.recorder import Recorder


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainStep:
    """The work of one optimizer step."""

    loss: Callable[[], Tensor]
    "Computes the mean loss of the step's labelled vertices, with its gradient; LBFGS calls it several times."
    num_labelled: int
    "Number of labelled vertices: the weight of this step in the loss of the epoch."


class EpochSource(Protocol):
    """Gives a session its work."""

    def steps(self, epoch: int) -> Iterable[TrainStep]:
        """The steps of an epoch, in order.

        The same epoch of the same run has the same steps, so that a resumed run goes on as the uninterrupted one would.

        Args:
            epoch: number of the epoch, from 1.
        """
        ...

    def logits(self) -> Tensor:
        """The model's output for all vertices, without dropout and without gradient: [num_vertices, C]."""
        ...

    @property
    def timeline(self) -> Recorder | None:
        """What ran when in the last epoch; None where it was not recorded."""
        ...
