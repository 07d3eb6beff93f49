"""Ctrl-C and SIGTERM end the program at a safe moment; SIGTERM within ten seconds, whatever the main thread does.

A moment is safe outside of imports, compilations, an ``eval`` and the writing of a checkpoint. An exception inside an import
leaves half-made modules. Inside a compiler it becomes another error, or is lost in a callback, and the run goes on. One that
leaves an ``eval`` or ``exec`` of a string, of which PyTorch's tracing is full, makes ``python -m`` end itself by SIGINT,
whatever the exit code. One that is raised while Python frees an object is lost; Python tells a hook of it, and it is raised again.

Schedulers and containers send SIGTERM, and kill the process ten seconds or more later. Python's handlers wait until a native
kernel returns to the interpreter, which may take longer. So a thread watches for SIGTERM as well, and ends the process itself
when its time is up.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from select import select
from threading import Thread
from types import FrameType
from typing import Any, NoReturn

from sagann.cli.failure import TERMINATED
from sagann.errors import Terminated
from sagann.temporary import remove_all
from sagann.torchrun import is_worker

_RETRY_S = 0.05
_FINISH_S = 4.0
"Seconds that work which can be finished gets after SIGTERM."
_MOST_S = 8.0
"Seconds from SIGTERM to the end of the process, at most."
_UNSAFE = frozenset({"importlib", "numba", "llvmlite", "triton", "sagann.train.saver"})


class Signals:
    """How Ctrl-C and SIGTERM end the program, inside :meth:`handled`."""

    def __init__(self) -> None:
        self.is_terminated = False
        "Whether the process has received SIGTERM."
        self._is_pressed = False
        self._finish: Callable[[], None] | None = None
        self._num_unsafe_before = 0
        self._error: type[BaseException] = KeyboardInterrupt
        self._raised: BaseException | None = None
        "The exception that a handler raised last; None where it is known to be lost, and before the first one."

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Inside the block, Ctrl-C raises KeyboardInterrupt and SIGTERM Terminated, each at the next safe moment.

        A second Ctrl-C raises at once. A second SIGTERM ends the process at once, but not a worker: its launcher passes on what
        a scheduler sends to all of them. A signal that is ignored or has another handler stays so.
        """
        # The block itself may run in an import or in a string.
        self._num_unsafe_before = _num_unsafe(sys._getframe())
        with ExitStack() as stack:
            # An interrupt may end a removal in its middle.
            stack.callback(remove_all)
            stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            stack.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
            sys.unraisablehook = partial(self._on_lost, sys.unraisablehook)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                stack.callback(signal.signal, signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGINT, self._on_press)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                stack.enter_context(self._watched())
                stack.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, self._on_terminate)
            yield

    @contextmanager
    def finishing(self, finish: Callable[[], None]) -> Iterator[None]:
        """Inside the block, SIGTERM calls ``finish``, and raises Terminated only if the block lasts some seconds more."""
        self._finish = finish
        try:
            yield
        finally:
            self._finish = None
            if self.is_terminated:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_press(self, number: int, frame: FrameType | None) -> None:
        again, self._is_pressed = self._is_pressed, True
        if again:
            self._raise(KeyboardInterrupt)
        self._raise_when_safe(KeyboardInterrupt, frame)

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        again, self.is_terminated = self.is_terminated, True
        if again:
            # The thread that watches ends the process.
            return
        if self._finish is None:
            self._raise_when_safe(Terminated, frame)
        else:
            self._finish()
            self._raise_when_safe(Terminated, frame, after_s=_FINISH_S)

    def _raise_when_safe(
        self, error: type[BaseException], frame: FrameType | None, *, after_s: float = 0.0
    ) -> None:
        """Raise ``error`` at the first safe moment, but not before some seconds are over."""
        self._error = error
        if not after_s:
            self._raise_if_safe(frame)
        self._retry(after_s or _RETRY_S)

    def _retry(self, after_s: float) -> None:
        """Raise the error at the first safe moment after some seconds."""
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, after_s, _RETRY_S)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        self._raise_if_safe(frame)

    def _raise_if_safe(self, frame: FrameType | None) -> None:
        if _num_unsafe(frame) <= self._num_unsafe_before:
            self._raise(self._error)

    def _raise(self, error: type[BaseException]) -> NoReturn:
        self._error = error
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._raised = error()
        raise self._raised

    def _on_lost(self, otherwise: Callable[[Any], object], lost: Any) -> None:
        """Raise again what was lost while an object was freed; the hook that was there before is told of anything else."""
        if self._raised is None or lost.exc_value is not self._raised:
            otherwise(lost)
            return
        self._raised = None
        self._retry(_RETRY_S)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Inside the block, a thread ends the process after SIGTERM, if the main thread does not."""
        incoming, outgoing = os.pipe()
        os.set_blocking(outgoing, False)
        # The system writes the number of a signal there at once, also while a native kernel runs.
        before = signal.set_wakeup_fd(outgoing, warn_on_full_buffer=False)
        Thread(target=self._watch, args=(incoming,), name="sagann-signals", daemon=True).start()
        try:
            yield
        finally:
            # After SIGTERM the thread goes on: the process has not ended yet.
            if not self.is_terminated:
                signal.set_wakeup_fd(before)
                os.close(outgoing)

    def _watch(self, incoming: int) -> None:
        """End the process at a second SIGTERM, but for a worker, or when the time after the first one is up."""
        num_came, deadline_s = 0, None
        while num_came < 2 or is_worker():
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not select([incoming], [], [], left_s)[0]:
                break
            numbers = os.read(incoming, 64)
            if not numbers:
                # The block has ended.
                os.close(incoming)
                return
            num_came += numbers.count(signal.SIGTERM)
            if num_came and deadline_s is None:
                deadline_s = time.monotonic() + _MOST_S
        # What is removed may fail the main thread, which must not end the process with another code.
        self.is_terminated = True
        try:
            remove_all()
            os.write(2, b"Error: terminated\n")
        finally:
            os._exit(TERMINATED)


def _num_unsafe(frame: FrameType | None) -> int:
    """Number of calls on the stack of ``frame`` during which no exception may be raised."""
    count = 0
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        is_string = frame.f_code.co_filename == "<string>" and frame.f_code.co_name == "<module>"
        count += module in _UNSAFE or module.partition(".")[0] in _UNSAFE or is_string
        frame = frame.f_back
    return count
