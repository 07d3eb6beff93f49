"""Ctrl-C while the program starts: imports finish first.

A KeyboardInterrupt inside an import leaves half-made modules behind, becomes an error of another kind on its way up, or
is lost in a callback of the import system, after which the run goes on as if nobody had asked it to stop.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_RETRY_S = 0.05


class CtrlC:
    """Ctrl-C as KeyboardInterrupt, but never inside an import: it waits until that is done, unless pressed again."""

    def __init__(self) -> None:
        self.pressed = False
        "Whether it was: what fails afterwards fails because of it."

    @contextmanager
    def outside_imports(self) -> Iterator[None]:
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
        again, self.pressed = self.pressed, True
        # Windows has no timer that interrupts the main thread.
        if again or not _imports(frame) or not hasattr(signal, "setitimer"):
            self._stop_waiting()
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S, _RETRY_S)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if not _imports(frame):
            self._stop_waiting()
            raise KeyboardInterrupt

    def _stop_waiting(self) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _imports(frame: FrameType | None) -> bool:
    """Whether what runs in ``frame`` was called by an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False


CTRL_C = CtrlC()
