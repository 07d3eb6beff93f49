"""Trainer: whoever computes the gradient of a share of each iteration's seeds; and the one that is this process.

An iteration is the handshake of the paper's figure 5: :meth:`Trainer.pack` and :meth:`Trainer.send` transfer a loaded share;
:meth:`Trainer.launch` starts its propagation with the weights of the model as they are; :meth:`Trainer.finish` waits for its gradient.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. III and figure 5.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sagann.kernels.packed import Layout
from sagann.runtime.loading import MiniBatch

LossOf = Callable[[MiniBatch], Tensor]
"The mean loss of a mini-batch's seeds, with its gradient."


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What a trainer trains in an iteration."""

    batch: MiniBatch
    "The mini-batch of the trainer's seeds."
    weight: float
    "Its seeds, as a part of all seeds of the iteration."
    seed: int
    "Seed of the random numbers of the iteration, the same for all trainers."
    iteration: str
    "The iteration, for errors: 'epoch 1, batch 0'."


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a trainer has found."""

    loss: Tensor
    "Mean loss of its seeds times the weight of its share: one number on the host, without gradient."
    gradients: tuple[Tensor | None, ...]
    "The gradient of that by each parameter, on the host; None for a parameter that the loss does not depend on. Valid until the next launch."
    seconds: float
    "Seconds of its propagation, forward and backward."
    simulation_s: float = 0.0
    "Where these are seconds of simulated hardware, those that the simulation took."
    transfer_s: float = 0.0
    "Then, seconds of the copy of its share."


class Trainer(ABC):
    """One of those who train together. By default a share is taken as it is, and nothing is started or ended."""

    divides_blocks = False
    "Whether the trainer makes by itself what a step needs of sampled blocks beyond their in-edges; else the thread that samples does."

    def open(self) -> None:
        """Wait until the trainer is ready.

        Raises:
            TrainerError: it cannot start.
        """

    def making_rows(self) -> AbstractContextManager[None]:
        """Inside the ``with`` block, on any thread, rows of features are made where :meth:`pack` wants them."""
        return nullcontext()

    def pack(self, share: Share) -> Any:
        """Make a share ready for :meth:`send`, on any thread."""
        return share

    def send(self, packed: Any) -> Any:
        """Transfer a share; called on a thread of its own, in the order of the iterations."""
        return packed

    @abstractmethod
    def launch(self, sent: Any) -> None:
        """Start the propagation of a share that was sent, with the model's present weights. Returns as early as it can."""

    @abstractmethod
    def finish(self) -> Found:
        """Wait for the propagation, or compute it now.

        Raises:
            TrainerError: the trainer is gone, or has failed.
        """

    def release(self, sent: Any) -> None:
        """Reuse the memory of a share that is not launched again."""

    def begin(self) -> None:
        """Drop all shares that were sent and not released, as those of an epoch that was left early."""

    def close(self) -> None:
        """Let go of processes and memory. A second call does nothing."""


def propagate(loss_of: LossOf, parameters: Sequence[Tensor], share: Share) -> Found:
    """Compute a share's part of the loss, and its gradient by the parameters."""
    since_s = time.perf_counter()
    loss, gradients = differentiated(loss_of, parameters, share)
    return Found(loss=loss.cpu(), gradients=gradients, seconds=time.perf_counter() - since_s)


def differentiated(
    loss_of: LossOf, parameters: Sequence[Tensor], share: Share
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """A share's part of the loss, and its gradient by each parameter, where the parameters lie; without waiting for a device."""
    loss = loss_of(share.batch) * share.weight
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    # A model that is cut off from its parameters has no gradient at all.
    found = torch.autograd.grad(loss, trained, allow_unused=True) if loss.requires_grad else [None] * len(trained)
    of_trained = iter(found)
    return loss.detach(), tuple(next(of_trained) if parameter.requires_grad else None for parameter in parameters)


def layout_of(tensors: Sequence[Tensor]) -> Layout:
    """The layout of tensors one after another in a piece of memory, which a process shares or a device copies at once."""
    return Layout({str(number): tensor for number, tensor in enumerate(tensors)})


def layout_views(layout: Layout, piece: Tensor) -> tuple[Tensor, ...]:
    """The tensors in a piece of memory, in their order."""
    return tuple(layout.views(piece).values())


class HostTrainer(Trainer):
    """The processor, in this process: computes when it is asked for its gradient, so that other trainers have started before."""

    def __init__(self, loss_of: LossOf, parameters: Sequence[Tensor]) -> None:
        self._loss_of, self._parameters = loss_of, parameters
        self._share: Share | None = None

    def launch(self, sent: Share) -> None:
        self._share = sent

    def finish(self) -> Found:
        assert self._share is not None
        return propagate(self._loss_of, self._parameters, self._share)

    def release(self, sent: Share) -> None:
        self._share = None

    def begin(self) -> None:
        self._share = None

    close = begin
