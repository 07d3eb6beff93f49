"""Ctrl-C as a request: the epoch is finished and saved before the run stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether the user asked the run to stop."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def stop_on_interrupt(on_message: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C inside the block into a request; the second one interrupts as usual.

    Signals reach only the main thread; elsewhere, and where Ctrl-C is ignored already, nothing changes.
    """
    request = StopRequest()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        request.requested = True
        signal.signal(signal.SIGINT, before)
        on_message("Stopping after this epoch. Press Ctrl-C again to stop at once.")

    signal.signal(signal.SIGINT, handle)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, before)
