"""SideChannel: connections of a worker with all others, on which one of its threads exchanges arrays beside the training step.

Workers that make mini-batches ask and answer each other many times a batch, a few kilobytes at a time. gloo agrees on every message with its
receiver first, by a thread of its own, which takes longer than most of these messages do. Here the thread that exchanges writes and reads
the sockets itself, and a message says how long its arrays are: one message to each worker is all that an exchange takes.

Workers find each other by texts that they exchange by their process group, with a token that whoever connects must know. As there, nothing
is encrypted, and nothing that is received is unpickled.
"""

from __future__ import annotations

import secrets
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np
from torch import Tensor

from sagann.errors import WorkerError
from sagann.graph.rows import flat_bytes
from sagann.kernels.memory import POOL

_TOKEN_BYTES, _RANK_BYTES = 16, 4
_GREETING_S = 2.0
"Seconds in which whoever has connected must say the token; a worker does it at once."
_MOST_VIEWS = 64
"Arrays that one call of the system writes or reads; every system takes so many."


class _Gone(Protocol):
    def __call__(self, peers: Sequence[int], why: str, hint: str = "") -> WorkerError:
        """The error that names workers that are gone."""


class SideChannel:
    """Connections of the worker ``rank`` with the others, by rank; ``gone`` makes the error for one that does not answer in ``timeout_s``."""

    def __init__(self, sockets: Mapping[int, socket.socket], *, rank: int, timeout_s: float, gone: _Gone) -> None:
        self.rank, self.size = rank, len(sockets) + 1
        self._sockets, self._timeout_s, self._gone = dict(sorted(sockets.items())), timeout_s, gone
        for each in self._sockets.values():
            each.setblocking(False)
            # A message waits for none that follows.
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, arrays: Mapping[int, Sequence[Tensor]], doing: str) -> dict[int, list[Tensor]]:
        """Send each other worker some tensors on the processor, and return those that it has sent, in the order of the ranks.

        All workers call this at the same time, with as many tensors. At each position they have one type and one shape of rows; the number
        of rows, which may be 0, travels. ``doing`` is what the workers do, for errors. One who sends and reads nothing for too long is a WorkerError.
        """
        messages = {rank: _Message(link, arrays[rank]) for rank, link in self._sockets.items()}
        waiting = {link.fileno(): rank for rank, link in self._sockets.items()}
        ready = list(waiting)
        while True:
            for number in ready:
                rank = waiting[number]
                try:
                    if messages[rank].go_on():
                        del waiting[number]
                except OSError as error:
                    raise self._gone([rank], f"its connection was lost ({error}) while {doing}") from error
            if not waiting:
                return {rank: message.received for rank, message in messages.items()}
            poll = select.poll()
            for number, rank in waiting.items():
                poll.register(number, messages[rank].events)
            ready = [number for number, _ in poll.poll(1000 * self._timeout_s)]
            if not ready:
                raise self._gone(
                    list(waiting.values()),
                    f"no answer within {self._timeout_s:g} s while {doing}",
                    " A worker that is only slow wants a longer --worker-timeout.",
                )

    def close(self) -> None:
        """Close the connections. Who waits for this worker sees it, and so does a thread of its own that waits for the others."""
        for each in self._sockets.values():
            # It may be lost already. A thread that waits would keep a connection open that is closed alone.
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class _Message:
    """What travels between two workers in an exchange: in each direction the numbers of rows of all tensors, and then the tensors."""

    def __init__(self, link: socket.socket, tensors: Sequence[Tensor]) -> None:
        self._link, self._like = link, tensors
        counts = np.array([len(tensor) for tensor in tensors], dtype=np.int64)
        self._to_send = [counts.data.cast("B"), *_views(tensors)]
        self._counts = np.empty_like(counts)
        self._to_receive = [self._counts.data.cast("B")]
        self.received: list[Tensor] = []

    @property
    def events(self) -> int:
        """What there is to wait for."""
        return (select.POLLOUT if self._to_send else 0) | (select.POLLIN if self._to_receive else 0)

    def go_on(self) -> bool:
        """Send and receive as much as there is; whether all of it has travelled."""
        _move(self._to_send, self._link.sendmsg)
        _move(self._to_receive, self._receive)
        if not self._to_receive and not self.received:
            counts = self._counts.tolist()
            self.received = [
                POOL.empty((count, *each.shape[1:]), each.dtype)
                for each, count in zip(self._like, counts, strict=True)
            ]
            self._to_receive = _views(self.received)
            _move(self._to_receive, self._receive)
        return not self._to_send and not self._to_receive

    def _receive(self, views: list[memoryview]) -> int:
        num_bytes = self._link.recvmsg_into(views)[0]
        if not num_bytes:
            raise ConnectionResetError("closed by the other worker")
        return num_bytes


def _views(tensors: Sequence[Tensor]) -> list[memoryview]:
    """The memory of tensors that are not empty; of one that is not contiguous a copy."""
    return [flat_bytes(tensor).data for tensor in tensors if tensor.numel()]


def _move(views: list[memoryview], some: Callable[[list[memoryview]], int]) -> None:
    """Have ``some`` write or read the memory of views, until nothing is left or it would wait; what is left stays in ``views``."""
    while views:
        try:
            num_bytes = some(views[:_MOST_VIEWS])
        except BlockingIOError:
            return
        while views and num_bytes >= len(views[0]):
            num_bytes -= len(views.pop(0))
        if num_bytes:
            views[0] = views[0][num_bytes:]


def connect(
    rank: int, size: int, address: str, texts: Callable[[str], Sequence[str]], *, timeout_s: float, gone: _Gone
) -> dict[int, socket.socket]:
    """Connect this worker with all others, which all call this at the same time; the sockets by rank.

    ``address`` is this worker's, as the others reach it. ``texts`` gives a text to all workers, and returns those of all.
    """
    token, found = secrets.token_bytes(_TOKEN_BYTES), dict[int, socket.socket]()
    ends_s = time.monotonic() + timeout_s
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=size) as server:
        addresses = texts(f"{address} {server.getsockname()[1]} {token.hex()}")
        # Whoever listens is connected at once, so nobody waits for a worker that connects itself.
        for other in range(rank):
            host, port, theirs = addresses[other].split()
            try:
                found[other] = socket.create_connection((host, int(port)), timeout=timeout_s)
                found[other].sendall(bytes.fromhex(theirs) + rank.to_bytes(_RANK_BYTES, "big"))
            except OSError as error:
                raise gone([other], f"it cannot be reached at {host} ({error})") from error
        while len(found) < size - 1:
            try:
                server.settimeout(max(0.001, ends_s - time.monotonic()))
                link, _ = server.accept()
            except OSError as error:
                missing = [other for other in range(size) if other != rank and other not in found]
                raise gone(missing, f"it has not connected within {timeout_s:g} s ({error})") from error
            link.settimeout(_GREETING_S)
            greeting = b""
            # A stranger may be silent, or gone.
            with suppress(OSError):
                greeting = link.recv(_TOKEN_BYTES + _RANK_BYTES, socket.MSG_WAITALL)
            if greeting[:_TOKEN_BYTES] == token:
                found[int.from_bytes(greeting[_TOKEN_BYTES:], "big")] = link
            else:
                link.close()
    return found
