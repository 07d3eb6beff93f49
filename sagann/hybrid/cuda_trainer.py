"""CUDA devices that train a share of each iteration: one that has the weights which are trained, and others with copies.

This process queues their work and goes on: devices propagate while the processor propagates a share of its own. Mini-batches, weights and
gradients travel through pinned memory, in the queues of :mod:`sagann.runtime.device.streams`. Nothing here waits.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. III (trainers of accelerators), figure 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from sagann.errors import SagannError, TrainerError, first_line
from sagann.hybrid.trainer import (
    Elapsed,
    Exchange,
    Found,
    LossOf,
    OwnTrainer,
    Share,
    Trainer,
    Weights,
    differentiated,
    numbers_of,
)
from sagann.kernels.seeds import seeded
from sagann.runtime.device.streams import Mark, Streams
from sagann.runtime.loading import MiniBatch, MiniBatches
from sagann.runtime.loading.device_copies import DeviceCopies, Packed, Sent
from sagann.runtime.tiered import DeviceFeatures, DeviceSampler


class _OnDevice(Trainer):
    """What shares of a device have in common. ``features`` are rows that it gathers, ``sampler`` samples there; None leaves that to the processor."""

    def __init__(
        self,
        name: str,
        loss_of: LossOf,
        streams: Streams,
        *,
        features: DeviceFeatures | None = None,
        sampler: DeviceSampler | None = None,
    ) -> None:
        self.name = name
        self._loss_of, self._streams, self._sampler = loss_of, streams, sampler
        self._copies = DeviceCopies(streams, features)
        self._numbers, self._unknown = streams.pinned(16).view(torch.float64), torch.zeros(2)

    def sample(self, minibatches: MiniBatches, seeds: Tensor, own: slice, *, epoch: int, batch: int) -> MiniBatch:
        if self._sampler is None:
            return super().sample(minibatches, seeds, own, epoch=epoch, batch=batch)
        features = self._copies.features or minibatches.graph.features
        with self._naming(f"sampling epoch {epoch}, batch {batch}"):
            return minibatches.drawn_on(
                self._streams, seeds, own, self._sampler, features, epoch=epoch, batch=batch
            )

    def load(self, share: Share, minibatches: MiniBatches) -> tuple[tuple[Share, Packed], MiniBatch]:
        packed = minibatches.packed(share.batch, self._copies)
        return (share, packed), packed.batch

    def send(self, packed: tuple[Share, Packed]) -> tuple[Share, Sent]:
        share, batch = packed
        with self._naming(f"copying {share.iteration}"):
            return share, self._copies.send(batch)

    def begin(self) -> None:
        self._copies.withdraw()

    close = begin

    def _kept(self, numbers: Tensor) -> Tensor:
        """The pinned memory that numbers of the device are on their way to."""
        self._streams.copy(self._numbers, numbers)
        return self._numbers

    @contextmanager
    def _naming(self, doing: str) -> Iterator[None]:
        """Inside the ``with`` block PyTorch's errors name the trainer and what it did."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, SagannError):
                raise
            raise TrainerError(
                f"trainer '{self.name}' has failed while {doing}: {first_line(error)} (in device "
                f"{self._streams.device})",
                hint="If the device's memory is full, lower the batch size or the fanouts; with --device it trains alone, and errors come with their line.",
            ) from error


class OwnCudaTrainer(_OnDevice, OwnTrainer):
    """A device with the weights that are trained."""

    _begin: Mark

    def loss(self, sent: tuple[Share, Sent]) -> Tensor:
        share, arrival = sent
        with self._naming(f"propagating {share.iteration}"), seeded(share.seed, self._streams.device):
            batch = self._copies.receive(arrival)
            self._begin = self._streams.mark("compute")
            return self._loss_of(batch) * share.weight

    def backward(self, iteration: str, loss: Tensor) -> None:
        with self._naming(f"propagating {iteration}"):
            super().backward(iteration, loss)

    def ended(self, loss: Tensor, gradients: Sequence[Tensor]) -> Found:
        numbers = self._kept(numbers_of(loss, gradients)) if gradients else self._unknown
        end = self._streams.mark("compute")
        return Found(numbers=numbers, elapsed=Elapsed(0.0, self._streams, (self._begin, end)))


class CudaTrainer(_OnDevice):
    """A device with a copy of the model, which is ``model``.

    Raises:
        InputError: the system does not pin the memory of gradients.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        loss_of: LossOf,
        streams: Streams,
        *,
        features: DeviceFeatures | None = None,
        sampler: DeviceSampler | None = None,
    ) -> None:
        super().__init__(name, loss_of, streams, features=features, sampler=sampler)
        self._parameters = tuple(model.parameters())
        num_bytes = Exchange.layout(self._parameters).num_bytes
        self._weights, self._found = (Exchange(self._parameters, streams.empty(num_bytes)) for _ in range(2))
        self._on_host = Exchange(self._parameters, streams.pinned(num_bytes))
        self._weights.hold(self._parameters)
        self._launched: Found | None = None

    def launch(self, sent: tuple[Share, Sent], weights: Weights) -> None:
        share, arrival = sent
        streams = self._streams
        with self._naming(f"propagating {share.iteration}"), seeded(share.seed, streams.device):
            if weights.arrival.marks is not None:
                streams.wait("compute", weights.arrival.marks[1])
            streams.copy(self._weights.memory, weights.memory)
            share = replace(share, batch=self._copies.receive(arrival))
            begin = streams.mark("compute")
            written = self._found.write(*differentiated(self._loss_of, self._parameters, share))
            streams.copy(self._on_host.memory, self._found.memory)
            numbers = self._kept(self._found.numbers)
            pairs = zip(written, self._on_host.tensors, strict=True)
            self._launched = Found(
                numbers=numbers,
                elapsed=Elapsed(0.0, streams, (begin, streams.mark("compute"))),
                gradients=tuple(None if each is None else memory for each, memory in pairs),
                memory=self._on_host.memory,
            )

    def finish(self) -> Found:
        assert self._launched is not None
        launched, self._launched = self._launched, None
        return launched

    def begin(self) -> None:
        self._launched = None
        super().begin()

    close = begin
