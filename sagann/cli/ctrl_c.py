"""Ctrl-C: an import, a compilation or an ``eval`` that is under way is finished first.

A KeyboardInterrupt inside one of them leaves half-made modules behind, becomes an error of another kind on its way up, or
is lost in a callback, after which the run goes on as if nobody had asked it to stop. One that comes out of an ``eval`` or
``exec`` of a string (PyTorch's tracing is full of them) makes ``python -m`` end itself by SIGINT, whatever the exit code.
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
    """Ctrl-C as KeyboardInterrupt at a moment at which that does no harm; at once where it is pressed again."""

    def __init__(self) -> None:
        self._pressed = False
        self._unsafe_before = 0

    @contextmanager
    def at_safe_moments(self) -> Iterator[None]:
        """Do so inside the block; where Ctrl-C is ignored, or is somebody else's, nothing changes."""
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
        # Windows has no timer that interrupts the main thread.
        if again or self._is_safe(frame) or not hasattr(signal, "setitimer"):
            self._stop_waiting()
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S, _RETRY_S)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if self._is_safe(frame):
            self._stop_waiting()
            raise KeyboardInterrupt

    def _is_safe(self, frame: FrameType | None) -> bool:
        """Whether nothing unsafe was begun since the block was entered; what called it may be a string, or an import."""
        return _num_unsafe(frame) <= self._unsafe_before

    def _stop_waiting(self) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _num_unsafe(frame: FrameType | None) -> int:
    """How many of the calls that led to ``frame`` are of an import, a compiler, or an ``eval`` or ``exec`` of a string."""
    count = 0
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        is_string = frame.f_code.co_filename == "<string>" and frame.f_code.co_name == "<module>"
        count += package in _UNSAFE or is_string
        frame = frame.f_back
    return count
