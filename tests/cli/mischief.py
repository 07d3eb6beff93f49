"""Mischief in the middle of a streamed epoch: something happens when a block is loaded for the n-th time.

``python -m tests.cli.mischief NUM_LOADS ARGUMENT ...`` runs ``sagann ARGUMENT ...`` and kills it at that load.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sagann.runtime.blocks.spill import DiskHost


@contextmanager
def at_load(number: int, happens: Callable[[Path], None]) -> Iterator[list[int]]:
    """Have something happen to the spill folder just before a load; yields how many loads there were.

    Args:
        number: of the load, counted from 1.
        happens: what, given the folder.
    """
    loads = [0]
    get = DiskHost.get

    def counted(self: DiskHost, block: Any) -> Any:
        loads[0] += 1
        if loads[0] == number:
            happens(self._folder.path)
        return get(self, block)

    DiskHost.get = counted  # type: ignore[method-assign]
    try:
        yield loads
    finally:
        DiskHost.get = get  # type: ignore[method-assign]


if __name__ == "__main__":
    import torch

    from sagann.cli.main import main

    torch.set_num_threads(1)
    with at_load(int(sys.argv[1]), lambda folder: os.kill(os.getpid(), signal.SIGKILL)):
        sys.exit(main(sys.argv[2:]))
