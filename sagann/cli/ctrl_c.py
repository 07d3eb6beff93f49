"""Ctrl-C waits until the import, the compilation or the ``eval`` that runs has ended.

A KeyboardInterrupt inside an import leaves half-made modules. Inside a compiler it becomes another error, or is lost in a
callback, and the run goes on. One that leaves an ``eval`` or ``exec`` of a string, of which PyTorch's tracing is full, makes
``python -m`` end itself by SIGINT, whatever the exit code.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_RETRY_S = 0.05
_UNSAFE = frozenset({"importlib", "numba", "llvmlite", "triton"})


class CtrlC:
    """Raises KeyboardInterrupt for Ctrl-C at the next safe moment; at once if Ctrl-C is pressed again."""

    def __init__(self) -> None:
        self._pressed = False
        self._unsafe_before = 0

    @contextmanager
    def at_safe_moments(self) -> Iterator[None]:
        """Handle Ctrl-C inside the ``with`` block, unless Ctrl-C is ignored or has another handler."""
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:
            yield
            return
        self._unsafe_before = _num_unsafe(sys._getframe())
        signal.signal(signal.SIGINT, self._on_press)
        try:
            yield
        finally:
            self._stop_waiting()
            signal.signal(signal.SIGINT, before)

    def _on_press(self, number: int, frame: FrameType | None) -> None:
        again, self._pressed = self._pressed, True
        if again or self._is_safe(frame):
            self._stop_waiting()
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S, _RETRY_S)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if self._is_safe(frame):
            self._stop_waiting()
            raise KeyboardInterrupt

    def _is_safe(self, frame: FrameType | None) -> bool:
        """Whether nothing unsafe began inside the block; the block itself may run in an import or in a string."""
        return _num_unsafe(frame) <= self._unsafe_before

    def _stop_waiting(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _num_unsafe(frame: FrameType | None) -> int:
    """Number of calls on the stack of ``frame`` that are an import, a compiler, or an ``eval`` or ``exec`` of a string."""
    count = 0
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        is_string = frame.f_code.co_filename == "<string>" and frame.f_code.co_name == "<module>"
        count += package in _UNSAFE or is_string
        frame = frame.f_back
    return count
