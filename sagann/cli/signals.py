"""Ctrl-C and SIGTERM end a command at once, and a training run after its step; a second one ends that at once too.

Python calls handlers in the main thread, when a native kernel that runs there has returned.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sagann.errors import Interrupted
from sagann.processes import is_worker


class Signals:
    """How Ctrl-C and SIGTERM end the program, inside :meth:`handled`."""

    def __init__(self) -> None:
        self.is_terminated = False
        "Whether the process has received SIGTERM."
        self.raised: Interrupted | None = None
        "The exception that a handler raised last; libraries may turn it into another one."
        self._stop: Callable[[], None] | None = None

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Inside the block, both raise Interrupted. A signal that is ignored or has another handler stays so."""
        handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        taken = {number: each for number, each in handlers.items() if signal.getsignal(number) is each}
        for number in taken:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in taken.items():
                signal.signal(number, handler)

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Inside the block, the first SIGTERM calls ``stop`` instead; ``Trainer.fit`` does so for Ctrl-C."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            is_first, self.is_terminated = not self.is_terminated, True
            if is_first and self._stop is not None:
                self._stop()
                return
            if not is_first and is_worker():
                # Its launcher passes on what a scheduler sends to all processes.
                return
        self.raised = Interrupted("terminated" if self.is_terminated else "interrupted")
        raise self.raised
