"""Ctrl-C as a request: the epoch is finished and saved before the run stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_interrupt(on_message: Callable[[str], None]) -> Iterator[threading.Event]:
    """Inside the block, the first Ctrl-C sets the event; the second one interrupts as usual.

    Signals reach only the main thread. In another thread, and where Ctrl-C is already ignored, nothing changes.
    """
    stop = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)
        on_message("Stopping after this epoch. Press Ctrl-C again to stop at once.")

    signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
