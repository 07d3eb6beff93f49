"""Hold a process back: let it have a share of a core."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PERIOD_S = 0.02
"Seconds in which a process has its share."
HELD_BACK = f"a duty cycle of {PERIOD_S:g} s: it is stopped (SIGSTOP) for the rest"


@contextmanager
def held_back(pid: int, share: float) -> Iterator[None]:
    """Inside the ``with`` block, a process has a share of a core: it is stopped for the rest of every period."""
    ended = threading.Event()

    def cycle() -> None:
        while not ended.is_set():
            time.sleep(share * PERIOD_S)
            os.kill(pid, signal.SIGSTOP)
            time.sleep((1 - share) * PERIOD_S)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=cycle)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
