"""ProcessTrainer: an accelerator as a process of its own, with its own cores and its own memory, which is reached at a stated rate.

So two real and unequal trainers run on a machine without a GPU. The process is started by ``torch.multiprocessing``; mini-batches, weights and
gradients lie in memory that both share (:mod:`sagann.hybrid.served`), which the system frees when both have ended, however they end.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait

import torch.multiprocessing
from torch import Tensor

from sagann.errors import InputError, TrainerError, first_line
from sagann.hybrid.served import Answer, Clock, Order, Replica, SharedPiece, serve, taken_apart
from sagann.hybrid.trainer import Elapsed, Exchange, Found, Share, Trainer, Weights, layout_of
from sagann.kernels.packed import Layout

MOST_WAIT_S = 600.0
"Seconds for which a trainer may compute an iteration."
_END_S = 5.0
Sent = tuple[str, bytes, Layout, SharedPiece]
"Iteration, text and layout of a share, and the piece of memory that it lies in."


class ProcessTrainer(Trainer):
    """Trains in a process of its own, which starts at once, on some cores or on all.

    ``replica`` gives the model and its loss; it must be picklable, as ``torch.multiprocessing`` asks. Mini-batches are copied at
    ``bytes_per_s``, or as fast as memory is. Where there is no room for what both share, it is an InputError.

    With a clock, the process simulates hardware: seconds of propagation are the clock's, and those of copies follow from ``bytes_per_s``.
    """

    divides_blocks = True

    def __init__(
        self,
        name: str,
        replica: Replica,
        parameters: Sequence[Tensor],
        *,
        cores: Sequence[int] = (),
        bytes_per_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name, self._is_simulated = name, clock is not None
        self._parameters = tuple(parameters)
        self._bytes_per_s, self._most_wait_s = bytes_per_s, MOST_WAIT_S
        layout = Exchange.layout(self._parameters)
        weights, gradients = (SharedPiece(layout.num_bytes, name) for _ in range(2))
        self._weights, self._found = weights.bytes, Exchange(self._parameters, gradients.bytes)
        self._pieces: list[SharedPiece] = []
        self._free: list[SharedPiece] = []
        "Pieces that no share lies in: taken on the thread that sends, and given back on the thread that trains."
        self._guard = threading.Lock()
        self._launched: tuple[str, int, float] | None = None
        "The iteration that is computed, bytes of its share, and when it was launched."
        context = torch.multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        started_with = (theirs, pickled((replica, clock)), layout, tuple(cores), os.getpid())
        self._process = context.Process(target=serve, args=started_with, name=f"sagann-{name}", daemon=True)
        with _interrupts_ignored():
            self._process.start()
        theirs.close()
        # Of a process that has ended already, open tells.
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in (weights, gradients):
                piece.send(self._pipe, self.pid)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def open(self) -> None:
        self._answer("starting")

    def send(self, share: Share) -> Sent:
        since_s = time.perf_counter()
        text, arrays = taken_apart(share)
        layout = layout_of(arrays)
        piece = self._piece(layout.num_bytes)
        for memory, array in zip(layout.views(piece.bytes).values(), arrays, strict=True):
            memory.copy_(array)
        if self._bytes_per_s is not None and not self._is_simulated:
            time.sleep(max(0.0, layout.num_bytes / self._bytes_per_s - (time.perf_counter() - since_s)))
        return share.iteration, text, layout, piece

    def launch(self, sent: Sent, weights: Weights) -> None:
        iteration, text, layout, piece = sent
        weights.arrival.seconds()
        self._weights.copy_(weights.memory)
        self._launched = iteration, layout.num_bytes, time.monotonic()
        try:
            self._pipe.send(Order(text=text, layout=layout, piece=id(piece), new_bytes=piece.unsent_bytes))
            if piece.unsent_bytes:
                piece.send(self._pipe, self.pid)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._gone(f"launching {iteration}") from error

    def finish(self) -> Found:
        assert self._launched is not None
        (iteration, num_bytes, launched_s), self._launched = self._launched, None
        answer = self._answer(f"propagating {iteration}")
        pairs = zip(self._found.tensors, answer.has_gradient, strict=True)
        # All processes of a system have the same monotonic clock.
        seconds, clocked_s = answer.ended_s - launched_s, answer.clocked_s
        return Found(
            numbers=self._found.numbers.clone(),
            elapsed=Elapsed(seconds if clocked_s is None else clocked_s),
            gradients=tuple(memory if has_gradient else None for memory, has_gradient in pairs),
            memory=self._found.memory,
            simulation_s=0.0 if clocked_s is None else seconds,
            transfer_s=num_bytes / self._bytes_per_s if self._bytes_per_s and clocked_s is not None else 0.0,
        )

    def release(self, sent: Sent) -> None:
        with self._guard:
            self._free.append(sent[-1])

    def begin(self) -> None:
        with self._guard:
            self._free = list(self._pieces)

    def close(self) -> None:
        self._pipe.close()
        # The pipe's end ends the process, unless it computes.
        self._process.join(0.2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_END_S)

    def _answer(self, doing: str) -> Answer:
        """What the process answers; waits for it."""
        ready = wait([self._pipe, self._process.sentinel], timeout=self._most_wait_s)
        if not ready:
            raise TrainerError(
                f"trainer '{self.name}' does not answer: no answer within {self._most_wait_s:g} s while "
                f"{doing} (in process {self.pid})",
                hint="See whether the process is stopped or its machine is short of memory, and continue with --resume.",
            )
        try:
            answer: Answer = self._pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            raise self._gone(doing) from error
        if answer.error:
            raise TrainerError(
                f"trainer '{self.name}' has failed while {doing}: {answer.error} (in process {self.pid})",
                hint="Do what that error says; without --devices it comes with its line.",
            )
        return answer

    def _gone(self, doing: str) -> TrainerError:
        self._process.join(_END_S)
        code = self._process.exitcode
        if code is not None and code < 0:
            why = f"ended by {signal.Signals(-code).name}"
        else:
            why = f"ended with exit code {code}"
        return TrainerError(
            f"trainer '{self.name}' is gone: {why} while {doing} (in process {self.pid})",
            hint="Call the training below `if __name__ == '__main__':`, because the process imports the program."
            if doing == "starting"
            else "Continue with --resume, and with other --devices if it happens again; SIGKILL often means that memory ran out.",
        )

    def _piece(self, num_bytes: int) -> SharedPiece:
        """The smallest free piece that is large enough, or a new one."""
        with self._guard:
            fitting = [each for each in self._free if len(each.bytes) >= num_bytes]
            if fitting:
                piece = min(fitting, key=lambda each: len(each.bytes))
                self._free.remove(piece)
            else:
                # Batches differ in size; a piece that is too small takes memory until the end.
                piece = SharedPiece(num_bytes + num_bytes // 4, self.name)
                self._pieces.append(piece)
            return piece


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Inside the ``with`` block Ctrl-C is ignored, and by a process that starts there from its first instruction on."""
    if threading.current_thread() is not threading.main_thread():
        # Python lets the first thread alone decide.
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def pickled(value: object) -> bytes:
    """What another process needs, pickled; an InputError where it cannot be."""
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise InputError(
            f"the model or its loss cannot be sent to another process: {first_line(error)} (in "
            "TrainConfig.devices)",
            hint="Define its classes and functions at the top of a module, or train in this process alone, without devices.",
        ) from error
