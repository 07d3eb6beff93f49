"""Served: what runs in the process of an accelerator. It has the model, its own cores and its own memory, which the trainer fills.

It answers one message at a time: a share in, a gradient out. It ends with its parent.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from sagann.errors import SagannError, in_one_line
from sagann.hybrid.message import Message, layout_views
from sagann.hybrid.shared_memory import received
from sagann.hybrid.trainer import LossOf, Share, propagate
from sagann.kernels.packed import Layout
from sagann.processes import end_quickly, end_with

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


def serve(pipe: Connection, replica: bytes, layout: Layout, cores: tuple[int, ...], parent: int) -> None:
    """Train what comes through a pipe until it ends.

    Args:
        pipe: first brings the memory of the weights, which the model's parameters view, and of the gradients; then orders.
        replica: the :data:`Replica`, pickled.
        layout: that of the weights, and of the gradients.
        cores: those that this process may use; none for all.
        parent: number of the process that has started this one.
    """
    # Elsewhere than on Linux, the end of the pipe ends it.
    end_with(parent)
    atexit.register(end_quickly)
    # Ctrl-C in a terminal and SIGTERM of a scheduler reach all processes; the first one saves the run, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(_SAVING_S))
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            if cores:
                os.sched_setaffinity(0, cores)
                torch.set_num_threads(len(cores))
            weights, gradients = (layout_views(layout, received(pipe, layout.num_bytes)) for _ in range(2))
            model, loss_of = pickle.loads(replica)()
            parameters = tuple(model.parameters())
            for parameter, memory in zip(parameters, weights, strict=True):
                parameter.data = memory
        except BaseException as error:  # noqa: BLE001 - the other process must hear of it.
            pipe.send(Answer(error=_said(error)))
            return
        pipe.send(Answer())
        pieces = dict[int, Tensor]()
        while True:
            order: Order = pipe.recv()
            if order.new_bytes:
                pieces[order.piece] = received(pipe, order.new_bytes)
            try:
                # No name holds the share while the next one is waited for.
                pipe.send(_trained(order.message.share_in(pieces[order.piece]), loss_of, parameters, gradients))
            except BaseException as error:  # noqa: BLE001 - the other process must hear of it.
                pipe.send(Answer(error=_said(error)))


def _trained(share: Share, loss_of: LossOf, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Answer:
    """Train a share, whose gradient is written to ``gradients``."""
    # For this process's threads.
    share.batch.prepare()
    torch.manual_seed(share.seed)
    found = propagate(loss_of, parameters, share)
    for memory, gradient in zip(gradients, found.gradients, strict=True):
        if gradient is not None:
            memory.copy_(gradient)
    return Answer(
        loss=found.loss.item(),
        has_gradient=tuple(gradient is not None for gradient in found.gradients),
        seconds=found.seconds,
    )


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, SagannError) else in_one_line(error)
