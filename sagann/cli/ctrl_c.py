"""Ctrl-C: an import, a compilation or an ``eval`` that is under way is finished first.

A KeyboardInterrupt inside one of them leaves half-made modules behind, becomes an error of another kind on its way up, or
is lost in a callback, after which the run goes on as if nobody had asked it to stop. One that comes out of an ``eval`` or
``exec`` of a string (PyTorch's tracing is full of them) makes ``python -m`` end itself by SIGINT, whatever the exit code.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_RETRY_S = 0.05
_UNSAFE = frozenset({"importlib", "numba", "llvmlite", "triton"})


class CtrlC:
    """Ctrl-C as KeyboardInterrupt at a moment at which that does no harm; at once where it is pressed again."""

    def __init__(self) -> None:
        self._pressed = False

    @contextmanager
    def at_safe_moments(self) -> Iterator[None]:
        """Do so inside the block; where Ctrl-C is ignored, or is somebody else's, nothing changes."""
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._on_press)
        try:
            yield
        finally:
            self._stop_waiting()
            signal.signal(signal.SIGINT, before)

    def _on_press(self, number: int, frame: FrameType | None) -> None:
        again, self._pressed = self._pressed, True
        # Windows has no timer that interrupts the main thread.
        if again or not _is_unsafe(frame) or not hasattr(signal, "setitimer"):
            self._stop_waiting()
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S, _RETRY_S)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if not _is_unsafe(frame):
            self._stop_waiting()
            raise KeyboardInterrupt

    def _stop_waiting(self) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _is_unsafe(frame: FrameType | None) -> bool:
    """Whether what runs in ``frame`` was called by an import, a compiler or an ``eval`` or ``exec`` of a string."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _UNSAFE:
            return True
        # The outermost is the program itself, which ``python -c`` has as a string.
        if (
            frame.f_code.co_filename == "<string>"
            and frame.f_code.co_name == "<module>"
            and frame.f_back is not None
        ):
            return True
        frame = frame.f_back
    return False
