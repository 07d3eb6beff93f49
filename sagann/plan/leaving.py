"""Leaving: blocks that a plan has dropped, but that are still being stored.

A plan drops a block to make room for what comes next, mostly for a load. Whoever obeys it need not stand still until the
block is stored: only the loads that follow have to, and a step that would not fit beside the block. The rule stands here
once, for the simulation and for the runtime.

Invariant: stores end in the order in which they began, and loads begin in theirs, each after the stores before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Store = TypeVar("Store")
"What tells when a store ends."


class Leaving(Generic[Store]):
    """What is in memory beyond a plan's count, and what of the count is not there yet.

    Example:
        >>> leaving = Leaving[str]()
        >>> leaving.drop(10, "store of a")
        >>> leaving.load(40)
        ['store of a']
        >>> leaving.drop(30, "store of b")
        >>> leaving.excess_bytes
        30
        >>> leaving.settle(lambda store: True)
        >>> leaving.excess_bytes
        0
    """

    def __init__(self) -> None:
        # In order: blocks that leave, and the loads that wait for those before them.
        self._entries: list[tuple[int, Store | None]] = []

    @property
    def stores(self) -> list[Store]:
        """The stores that are not known to have ended."""
        return [store for _, store in self._entries if store is not None]

    def drop(self, num_bytes: int, store: Store) -> None:
        """A block is dropped while it is being stored."""
        self._entries.append((num_bytes, store))

    def load(self, num_bytes: int) -> list[Store]:
        """A load comes; gives the stores that it has to wait for."""
        stores = self.stores
        if stores:
            self._entries.append((-num_bytes, None))
        return stores

    def settle(self, is_done: Callable[[Store], bool]) -> None:
        """Forget the stores that have ended, and the loads that waited for no others."""
        while self._entries and (self._entries[0][1] is None or is_done(self._entries[0][1])):
            self._entries.pop(0)

    @property
    def excess_bytes(self) -> int:
        """The most that is in memory beyond the plan's count, now or when some of the stores have ended."""
        most = total = 0
        for num_bytes, _ in reversed(self._entries):
            total += num_bytes
            most = max(most, total)
        return most
