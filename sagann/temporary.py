"""Removals of files and folders that must not outlive the process.

Their owners call them, in ``finally`` or from a finalizer. A process that must end while its main thread computes runs
neither, and calls :func:`remove_all`.
"""

from __future__ import annotations

from collections.abc import Callable

_PENDING: set[Removal] = set()


class Removal:
    """Removes something when it is called, or before that by :func:`remove_all`.

    Args:
        remove: the removal; may be called again, by another thread too, and then does nothing.
    """

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove
        _PENDING.add(self)

    def __call__(self) -> None:
        self._remove()
        # Only now: an exception of a signal handler may end the removal in its middle.
        _PENDING.discard(self)


def remove_all() -> None:
    """Remove what no owner has removed yet."""
    for removal in tuple(_PENDING):
        removal()
