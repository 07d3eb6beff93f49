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


@contextmanager
def ctrl_c_at_safe_moments() -> Iterator[None]:
    """Inside the block, Ctrl-C raises KeyboardInterrupt at the next safe moment; at once if it is pressed again.

    Nothing changes where Ctrl-C is ignored or has another handler.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    # The block itself may run in an import or in a string.
    unsafe_before = _num_unsafe(sys._getframe())
    is_pressed = False

    def is_safe(frame: FrameType | None) -> bool:
        return _num_unsafe(frame) <= unsafe_before

    def on_press(number: int, frame: FrameType | None) -> None:
        nonlocal is_pressed
        again, is_pressed = is_pressed, True
        if again or is_safe(frame):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S, _RETRY_S)

    def on_alarm(number: int, frame: FrameType | None) -> None:
        if is_safe(frame):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_press)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, before)


def _num_unsafe(frame: FrameType | None) -> int:
    """Number of calls on the stack of ``frame`` that are an import, a compiler, or an ``eval`` or ``exec`` of a string."""
    count = 0
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        is_string = frame.f_code.co_filename == "<string>" and frame.f_code.co_name == "<module>"
        count += package in _UNSAFE or is_string
        frame = frame.f_back
    return count
