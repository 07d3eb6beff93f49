"""Served: what runs in the process of an accelerator. It has the model, its own cores and its own memory, which the trainer fills.

It answers one message at a time: a share in, a gradient out. It ends with its parent. The arrays of a share lie in a piece of shared
memory; the text of the message is the rest of the share, and is unpickled by the process that this process has started, from a pipe that no
other process holds. A piece is a file without a name, all of which is taken when it is made, so that a full system is an error there, and
no signal when the memory is written. The other process gets the file's descriptor through the pipe.
"""

from __future__ import annotations

import atexit
import mmap
import os
import pickle
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sagann.byte_size import format_bytes
from sagann.errors import InputError, SagannError, in_one_line
from sagann.graph.rows import csr_tensor, is_sparse, row_arrays
from sagann.hybrid.trainer import Exchange, LossOf, Share, differentiated
from sagann.kernels.packed import Layout
from sagann.processes import end_quickly, end_with
from sagann.runtime.loading import MiniBatch


def taken_apart(share: Share) -> tuple[bytes, list[Tensor]]:
    """A share, pickled, with a number in the place of each array; and these arrays, which lie in the host's memory."""
    text = BytesIO()
    pickler = _Pickler(text)
    pickler.dump(share)
    return text.getvalue(), pickler.arrays


def put_together(text: bytes, arrays: Sequence[Tensor]) -> Share:
    """The share whose arrays are these."""
    share: Share = _Unpickler(text, arrays).load()
    return share


class _Pickler(pickle.Pickler):
    """Collects the arrays, and writes their numbers."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.arrays: list[Tensor] = []

    def persistent_id(self, obj: object) -> Any:
        if not isinstance(obj, Tensor):
            return None
        first = len(self.arrays)
        self.arrays += [array.detach() for array in row_arrays(obj)]
        return first, obj.shape[1] if is_sparse(obj) else None


class _Unpickler(pickle.Unpickler):
    """Puts arrays in the places of their numbers."""

    def __init__(self, text: bytes, arrays: Sequence[Tensor]) -> None:
        super().__init__(BytesIO(text))
        self._arrays = arrays

    def persistent_load(self, pid: Any) -> Tensor:
        first, num_columns = pid
        if num_columns is None:
            return self._arrays[first]
        return csr_tensor(*self._arrays[first : first + 3], num_columns=num_columns)


# Where Linux keeps files that are memory.
_IN_MEMORY = Path("/dev/shm")


class SharedPiece:
    """A piece of memory that this process has made for a trainer of a name, in errors: where there is no room, an InputError."""

    def __init__(self, num_bytes: int, name: str) -> None:
        folder = _IN_MEMORY if _IN_MEMORY.is_dir() else Path(tempfile.gettempdir())
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.truncate(num_bytes)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                self.bytes = _mapped(file.fileno(), num_bytes)
                "The memory: uint8 [num_bytes]."
                self.unsent_bytes = num_bytes
                "Bytes until the piece is sent; then 0."
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise InputError(
                f"the memory that processes share is full: {format_bytes(num_bytes)} wanted, "
                f"{format_bytes(shutil.disk_usage(folder).free)} free in {folder} ({error.strerror}) (in "
                f"trainer '{name}')",
                hint="Lower the batch size or the batches ahead, or give the container more (docker run --shm-size).",
            ) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)

    def send(self, pipe: Connection, pid: int) -> None:
        """Give the piece to the process at the other end of a pipe, which calls :func:`received`; once."""
        send_handle(pipe, self._descriptor, pid)
        self.unsent_bytes = 0
        self._close()


def received(pipe: Connection, num_bytes: int) -> Tensor:
    """The memory of a piece that comes through a pipe: uint8 [num_bytes]."""
    descriptor = recv_handle(pipe)
    try:
        return _mapped(descriptor, num_bytes)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, num_bytes: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, num_bytes), dtype=torch.uint8)


_SAVING_S = 10
"Seconds that a process goes on after SIGTERM, if its parent does not end it before."
Replica = Callable[[], tuple[nn.Module, LossOf]]
"Gives the model of a process, and the loss that runs it."
Clock = Callable[[MiniBatch], float]
"Seconds in which simulated hardware propagates a mini-batch, forward and backward."


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What a process is told to train."""

    text: bytes
    layout: Layout
    "Where the arrays lie in a piece of memory; those of the share view it."
    piece: int
    new_bytes: int
    "Bytes of that piece where the process does not know it yet: it follows the order; else 0."


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a process tells of an order."""

    error: str = ""
    has_gradient: tuple[bool, ...] = ()
    "For each parameter, whether the loss depends on it. The loss and the gradients lie in the memory that both processes share."
    ended_s: float = 0.0
    "When the propagation ended, by ``time.monotonic``."
    clocked_s: float | None = None
    "Seconds that the simulated hardware takes for it; None where none is simulated."


def serve(pipe: Connection, replica: bytes, layout: Layout, cores: tuple[int, ...], parent: int) -> None:
    """Train what comes through a pipe until it ends: first the memory of the weights, which the model's parameters view, and of the
    gradients; then orders.

    Both have one layout. The replica and a clock, or None, are pickled; without cores, this process may use all. ``parent`` is the process
    that has started this one.
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
            weights, gradients = (received(pipe, layout.num_bytes) for _ in range(2))
            replica_of, clock = pickle.loads(replica)
            model, loss_of = replica_of()
            parameters = tuple(model.parameters())
            Exchange(parameters, weights).hold(parameters)
            found = Exchange(parameters, gradients)
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
                arrays = tuple(order.layout.views(pieces[order.piece]).values())
                share = put_together(order.text, arrays)
                clocked_s = None if clock is None else clock(share.batch)
                # For this process's threads.
                share.batch.prepare()
                torch.manual_seed(share.seed)
                written = found.write(*differentiated(loss_of, parameters, share))
                has_gradient = tuple(each is not None for each in written)
                # No name holds the share while the next one is waited for.
                del share, arrays
                pipe.send(Answer(has_gradient=has_gradient, ended_s=time.monotonic(), clocked_s=clocked_s))
            except BaseException as error:  # noqa: BLE001 - the other process must hear of it.
                pipe.send(Answer(error=_said(error)))


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, SagannError) else in_one_line(error)
