"""Mischief in the middle of a streamed epoch: something happens when a block is loaded for the n-th time.

The program of this module, ``SIGNALS NUM_LOADS SECONDS ARGUMENT ...``, runs ``sagann ARGUMENT ...``, sends itself the signals,
as "TERM,TERM", at that load, says at what time, and lets that load and all later ones wait for so many seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sagann.runtime.blocks.spill import DiskHost


@contextmanager
def at_load(number: int, happens: Callable[[], None], *, later_s: float = 0.0) -> Iterator[list[int]]:
    """Have something happen just before a load of a block; yields how many loads there were.

    Args:
        number: of the load, counted from 1.
        happens: what.
        later_s: seconds that this load and all later ones wait.
    """
    loads = [0]
    get = DiskHost.get

    def counted(self: DiskHost, block: Any) -> Any:
        loads[0] += 1
        if loads[0] == number:
            happens()
        if number <= loads[0]:
            time.sleep(later_s)
        return get(self, block)

    DiskHost.get = counted  # type: ignore[method-assign]
    try:
        yield loads
    finally:
        DiskHost.get = get  # type: ignore[method-assign]


def _send(names: str) -> None:
    sys.stdout.write(f"{time.monotonic()}\n")
    sys.stdout.flush()
    for name in names.split(","):
        os.kill(os.getpid(), signal.Signals[f"SIG{name}"])
        time.sleep(0.2)


def main() -> None:
    """Run the program's command."""
    from sagann.__main__ import main as program

    names, num_loads, later_s = sys.argv[1:4]
    del sys.argv[1:4]
    with at_load(int(num_loads), lambda: _send(names), later_s=float(later_s)):
        program()
