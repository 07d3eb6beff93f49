"""Mischief in the middle of a streamed epoch: something happens when a block is loaded for the n-th time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sagann.runtime.blocks.host import DiskHost


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
