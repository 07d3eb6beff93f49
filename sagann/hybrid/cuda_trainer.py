"""CudaTrainer: a CUDA device that trains a share of each iteration, beside the processor.

This process launches its kernels and goes on: the device propagates while the processor propagates a share of its own. Mini-batches, weights and
gradients travel through pinned memory, in the queues of :mod:`sagann.runtime.device.streams`. Only :meth:`CudaTrainer.finish` waits.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. III (trainers of accelerators), figure 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sagann.errors import SagannError, TrainerError, first_line
from sagann.hybrid.trainer import Found, LossOf, Share, Trainer, differentiated, layout_of, layout_views
from sagann.kernels.seeds import seeded
from sagann.runtime.device.streams import Mark, Streams
from sagann.runtime.loading.device_copies import DeviceCopies, Packed, Sent


class _Launched(NamedTuple):
    """What the device computes."""

    iteration: str
    gradients: tuple[Tensor | None, ...]
    "Pinned memory that each gradient goes to; None for a parameter without one."
    begin: Mark
    end: Mark


class CudaTrainer(Trainer):
    """Trains on a device of this process: ``model`` and ``loss_of`` are a copy on the device, ``parameters`` those of the model on the
    host.

    Raises:
        InputError: the system does not pin the memory of weights and gradients.
    """

    def __init__(
        self, name: str, model: nn.Module, loss_of: LossOf, parameters: Sequence[Tensor], streams: Streams
    ) -> None:
        self.name = name
        self._loss_of, self._parameters, self._streams = loss_of, tuple(parameters), streams
        self._replicas = tuple(model.parameters())
        layout = layout_of(self._parameters)
        self._on_host, gradients = streams.pinned(layout.num_bytes), streams.pinned(layout.num_bytes)
        self._on_device = streams.empty(layout.num_bytes)
        self._weights, self._gradients = (layout_views(layout, memory) for memory in (self._on_host, gradients))
        self._loss = streams.pinned(8).view(torch.float64)
        for replica, memory in zip(self._replicas, layout_views(layout, self._on_device), strict=True):
            replica.data = memory
        self._copies = DeviceCopies(streams)
        self._launched: _Launched | None = None

    def making_rows(self) -> AbstractContextManager[None]:
        return self._copies.making_rows()

    def pack(self, share: Share) -> tuple[Share, Packed]:
        return share, self._copies.pack(share.batch)

    def send(self, packed: tuple[Share, Packed]) -> tuple[Share, Sent]:
        share, batch = packed
        with self._naming(f"copying {share.iteration}"):
            return share, self._copies.send(batch)

    def launch(self, sent: tuple[Share, Sent]) -> None:
        share, arrival = sent
        for memory, parameter in zip(self._weights, self._parameters, strict=True):
            memory.copy_(parameter.detach())
        with self._naming(f"propagating {share.iteration}"), seeded(share.seed, self._streams.device):
            self._streams.copy(self._on_device, self._on_host)
            share = replace(share, batch=self._copies.receive(arrival))
            begin = self._streams.mark("compute")
            loss, found = differentiated(self._loss_of, self._replicas, share)
            self._streams.copy(self._loss, loss.to(torch.float64).view(1))
            gradients: list[Tensor | None] = []
            for memory, gradient in zip(self._gradients, found, strict=True):
                if gradient is not None:
                    self._streams.copy(memory, gradient)
                gradients.append(None if gradient is None else memory)
            end = self._streams.mark("compute")
        self._launched = _Launched(share.iteration, tuple(gradients), begin, end)

    def finish(self) -> Found:
        assert self._launched is not None
        launched, self._launched = self._launched, None
        with self._naming(f"propagating {launched.iteration}"):
            self._streams.finish(launched.end)
            seconds = self._streams.seconds(launched.begin, launched.end)
        return Found(loss=self._loss[0].clone(), gradients=launched.gradients, seconds=seconds)

    def begin(self) -> None:
        self._launched = None
        self._copies.withdraw()

    close = begin

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
