"""Served: what runs in the process of an accelerator. It has the model, its own cores and its own memory, which the trainer fills.

It answers one message at a time: a share in, a gradient out. It ends with its parent.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from sagann.errors import SagannError, in_one_line
from sagann.hybrid.message import Message, layout_views
from sagann.hybrid.shared_memory import received
from sagann.hybrid.trainer import LossOf, propagate
from sagann.kernels.packed import Layout
from sagann.parent_process import end_with
from sagann.process_end import end_quickly
from sagann.runtime.loading import MiniBatch

_SAVING_S = 10
"Seconds that a process goes on after SIGTERM, if its parent does not end it before."
Replica = Callable[[], tuple[nn.Module, LossOf]]
"Gives the model of a process, and the loss that runs it."


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What a process is told to train."""

    message: Message
    "The share."
    piece: int
    "Number of the piece of memory that its arrays lie in."
    new_bytes: int
    "Bytes of that piece where the process does not know it yet: it follows the order; else 0."


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a process tells of an order."""

    error: str = ""
    "Message of the error that ended the propagation; empty without an error."
    loss: float = 0.0
    "The loss, times the weight of the share."
    has_gradient: tuple[bool, ...] = ()
    "For each parameter, whether the loss depends on it. The gradients lie in the memory that both processes share."
    seconds: float = 0.0
    "Seconds of the propagation."


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What a process begins with."""

    replica: bytes
    "The :data:`Replica`, pickled."
    layout: Layout
    "That of the weights, which the model's parameters view, and of the gradients. The memory of both comes through the pipe, in this order."
    cores: tuple[int, ...]
    "Cores that the process may use; none for all."
    parent: int
    "Number of the process that starts this one."


def serve(pipe: Connection, start: Start) -> None:
    """Train what comes through a pipe until it ends."""
    # Elsewhere than on Linux, the end of the pipe ends it.
    end_with(start.parent)
    atexit.register(end_quickly)
    # Ctrl-C in a terminal and SIGTERM of a scheduler reach all processes; the first one saves the run, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(_SAVING_S))
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            trained = _Trained(start, pipe)
        except BaseException as error:  # noqa: BLE001 - the other process must hear of it.
            pipe.send(Answer(error=_said(error)))
            return
        pipe.send(Answer())
        while True:
            order: Order = pipe.recv()
            if order.new_bytes:
                trained.pieces[order.piece] = received(pipe, order.new_bytes)
            pipe.send(trained.answer(order))


class _Trained:
    """The model of this process."""

    def __init__(self, start: Start, pipe: Connection) -> None:
        weights, self._gradients = (
            layout_views(start.layout, received(pipe, start.layout.num_bytes)) for _ in range(2)
        )
        if start.cores:
            os.sched_setaffinity(0, start.cores)
            torch.set_num_threads(len(start.cores))
        model, self._loss_of = pickle.loads(start.replica)()
        self._parameters = tuple(model.parameters())
        for parameter, memory in zip(self._parameters, weights, strict=True):
            parameter.data = memory
        self.pieces: dict[int, Tensor] = {}
        "Memory that shares lie in, by its number."

    def answer(self, order: Order) -> Answer:
        """Train a share; whatever goes wrong is in the answer."""
        try:
            share = order.message.share_in(self.pieces[order.piece])
            _prepare(share.batch)
            torch.manual_seed(share.seed)
            result = propagate(self._loss_of, self._parameters, share)
            for memory, gradient in zip(self._gradients, result.gradients, strict=True):
                if gradient is not None:
                    memory.copy_(gradient)
            return Answer(
                loss=result.loss.item(),
                has_gradient=tuple(gradient is not None for gradient in result.gradients),
                seconds=result.seconds,
            )
        except BaseException as error:  # noqa: BLE001 - the other process must hear of it.
            return Answer(error=_said(error))


def _prepare(batch: MiniBatch) -> None:
    """Divide the blocks of a batch into work items for this process's threads."""
    batch.prepare()


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, SagannError) else in_one_line(error)
