"""Trainer: whoever computes the gradient of a share of each iteration's seeds; and those on the processor, in this process.

One of them, the *own* trainer, has the weights that are trained: the training step propagates its share. The others have copies. An iteration
is the handshake of the paper's figure 5: :meth:`Trainer.load` and :meth:`Trainer.send` transfer a share; :meth:`Trainer.launch` starts its
propagation with the weights that were published; :meth:`Trainer.finish` gives its gradient.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. III and figure 5.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sagann.kernels.packed import Layout
from sagann.kernels.seeds import seeded
from sagann.runtime.loading import MiniBatch, MiniBatches

if TYPE_CHECKING:
    from sagann.runtime.device.streams import Mark, Streams

LossOf = Callable[[MiniBatch], Tensor]
"The mean loss of a mini-batch's seeds, with its gradient."


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What a trainer trains in an iteration."""

    batch: MiniBatch
    weight: float
    "Its seeds, as a part of all seeds of the iteration."
    seed: int
    "Seed of the random numbers of the iteration, the same for all trainers."
    iteration: str


class Exchange:
    """A piece of memory with a tensor for each parameter, weights or gradients, and with the numbers of a share."""

    def __init__(self, parameters: Sequence[Tensor], memory: Tensor) -> None:
        self.memory = memory
        "uint8 [bytes]."
        *self.tensors, self.numbers = Exchange.layout(parameters).views(memory).values()
        "The tensors of the parameters. Numbers, float64 [2]: the part of the loss, and the largest magnitude of the gradient."

    @staticmethod
    def layout(parameters: Sequence[Tensor]) -> Layout:
        return layout_of([*parameters, torch.empty(2, dtype=torch.float64, device="meta")])

    def write(self, loss: Tensor, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Write a loss and its gradient, which lie on the device of the memory; the tensors that have one."""
        found = [each for each in gradients if each is not None]
        written = tuple(None if each is None else into for into, each in zip(self.tensors, gradients, strict=True))
        with torch.no_grad():
            torch._foreach_copy_([each for each in written if each is not None], found)
            self.numbers.copy_(numbers_of(loss, found))
        return written

    def hold(self, parameters: Sequence[Tensor]) -> None:
        """Have parameters of a copy lie here."""
        for parameter, memory in zip(parameters, self.tensors, strict=True):
            parameter.data = memory


def numbers_of(loss: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """A loss and the largest magnitude of its gradient, float64 [2], by which it is known whether all numbers are finite."""
    largest = nn.utils.get_total_norm(gradients, math.inf)
    return torch.stack([loss.detach().to(torch.float64), largest.to(loss.device, torch.float64)])


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Seconds of work. With ``marks``, its begin and end, it is that of a device, which may not have done it yet."""

    known_s: float = 0.0
    streams: Streams | None = None
    marks: tuple[Mark, Mark] | None = None

    def seconds(self) -> float:
        """The seconds, when the work is done, which is waited for."""
        if self.streams is None or self.marks is None:
            return self.known_s
        if not self.streams.is_passed(self.marks[1]):
            self.streams.finish(self.marks[1])
        return self.streams.seconds(*self.marks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Weights that were published, in the host's memory."""

    memory: Tensor
    "As :class:`Exchange` lays them out."
    arrival: Elapsed = Elapsed()
    "They are there when that has passed."


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a trainer has found, or will have found when its device has done its work."""

    numbers: Tensor
    "float64 [2], on the host: the mean loss of its seeds times the weight of its share, and the largest magnitude of the gradient."
    elapsed: Elapsed
    "Its propagation, forward and backward. Numbers and gradients are there when that has passed."
    gradients: tuple[Tensor | None, ...] = ()
    "The gradient of the loss by each parameter, on the host; None for a parameter that the loss does not depend on. Valid until the next launch."
    memory: Tensor | None = None
    "The piece of memory that they lie in, as :class:`Exchange` lays them out; None for the own trainer."
    simulation_s: float = 0.0
    "Where seconds are those of simulated hardware, those that the simulation took."
    transfer_s: float = 0.0
    "Then, seconds of the copy of its share."


class Trainer:
    """One of those who train together. By default a share is taken as it is, and nothing is started or ended."""

    divides_blocks = False
    "Whether the trainer makes by itself what a step needs of sampled blocks beyond their in-edges; else the thread that samples does."

    def open(self) -> None:
        """Wait until the trainer is ready.

        Raises:
            TrainerError: it cannot start.
        """

    def sample(self, minibatches: MiniBatches, seeds: Tensor, own: slice, *, epoch: int, batch: int) -> MiniBatch:
        """Sample the neighbours of the trainer's part of a mini-batch, on any thread."""
        sampled, _ = minibatches.drawn(seeds, own, minibatches.neighbor_sampler, epoch=epoch, batch=batch)
        return sampled if self.divides_blocks else sampled.prepare()

    def load(self, share: Share, minibatches: MiniBatches) -> tuple[Any, MiniBatch]:
        """Make a share that was sampled ready for :meth:`send`, on any thread; and its mini-batch, with the rows that the processor has read."""
        share = replace(share, batch=minibatches.load(share.batch))
        return share, share.batch

    def send(self, packed: Any) -> Any:
        """Transfer a share; called on a thread of its own, in the order of the iterations."""
        return packed

    def launch(self, sent: Any, weights: Weights) -> None:
        """Start the propagation of a share that was sent, with weights that were published. Returns as early as it can."""
        raise NotImplementedError

    def finish(self) -> Found:
        """Give what was found; a process is waited for, the processor computes it now, and a device may still work.

        Raises:
            TrainerError: the trainer is gone, or has failed.
        """
        raise NotImplementedError

    def release(self, sent: Any) -> None:
        """Reuse the memory of a share that is not launched again."""

    def begin(self) -> None:
        """Drop all shares that were sent and not released, as those of an epoch that was left early."""

    def close(self) -> None:
        """Let go of processes and memory. A second call does nothing."""


class OwnTrainer(Trainer):
    """The processor, with the weights that are trained."""

    def __init__(self, loss_of: LossOf) -> None:
        self._loss_of, self._since_s = loss_of, 0.0

    def loss(self, sent: Any) -> Tensor:
        """A share's part of the loss, with its gradient by the weights that are trained."""
        self._since_s = time.perf_counter()
        with seeded(sent.seed, torch.device("cpu")):
            return self._loss_of(sent.batch) * sent.weight

    def backward(self, iteration: str, loss: Tensor) -> None:
        """Propagate a part of the loss of an iteration back to the weights."""
        loss.backward()

    def ended(self, loss: Tensor, gradients: Sequence[Tensor]) -> Found:
        """What it has found, when the backward pass is queued. Without ``gradients``, nobody asks for its numbers."""
        elapsed = Elapsed(time.perf_counter() - self._since_s)
        return Found(numbers=numbers_of(loss, gradients), elapsed=elapsed)


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


class HostTrainer(Trainer):
    """The processor, in this process, with a copy of the model: computes when it is asked for its gradient, so that other trainers have started
    before. The copy's parameters lie in ``weights``, the memory that they are published in, and its gradients in ``memory``.
    """

    def __init__(self, model: nn.Module, loss_of: LossOf, weights: Tensor, memory: Tensor) -> None:
        self._loss_of, self._parameters = loss_of, tuple(model.parameters())
        self._found = Exchange(self._parameters, memory)
        Exchange(self._parameters, weights).hold(self._parameters)
        self._launched: tuple[Share, Weights] | None = None

    def launch(self, sent: Share, weights: Weights) -> None:
        self._launched = sent, weights

    def finish(self) -> Found:
        assert self._launched is not None
        share, weights = self._launched
        weights.arrival.seconds()
        since_s = time.perf_counter()
        with seeded(share.seed, torch.device("cpu")):
            gradients = self._found.write(*differentiated(self._loss_of, self._parameters, share))
        elapsed, numbers = Elapsed(time.perf_counter() - since_s), self._found.numbers.clone()
        return Found(numbers=numbers, elapsed=elapsed, gradients=gradients, memory=self._found.memory)

    def begin(self) -> None:
        self._launched = None

    close = begin
