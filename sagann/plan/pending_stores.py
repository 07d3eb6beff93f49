"""Pending stores: blocks that a plan has dropped while they are still being stored.

A plan drops a block to make room, mostly for a load. Execution need not stop until the block is stored: only the following
loads wait, and a step that does not fit beside the block. The simulation and the runtime share this rule.

Invariant: stores end in the order in which they began, and loads begin in order, each after the stores before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Store = TypeVar("Store")
"A handle that tells when a store has ended."


class PendingStores(Generic[Store]):
    """Memory that dropped blocks still take, and memory of loads that wait for them.

    Example:
        >>> pending = PendingStores[str]()
        >>> pending.drop(10, "store of a")
        >>> pending.load(40)
        ['store of a']
        >>> pending.drop(30, "store of b")
        >>> pending.excess_bytes
        30
        >>> pending.settle(lambda store: True)
        >>> pending.excess_bytes
        0
    """

    def __init__(self) -> None:
        # In order: bytes of dropped blocks with their stores, and negative bytes of the loads that wait for earlier stores.
        self._entries: list[tuple[int, Store | None]] = []

    @property
    def stores(self) -> list[Store]:
        """The stores that are not known to have ended."""
        return [store for _, store in self._entries if store is not None]

    def drop(self, num_bytes: int, store: Store) -> None:
        """Note that a block is dropped while it is being stored."""
        self._entries.append((num_bytes, store))

    def load(self, num_bytes: int) -> list[Store]:
        """Note a load, and return the stores that must end before it."""
        stores = self.stores
        if stores:
            self._entries.append((-num_bytes, None))
        return stores

    def settle(self, is_done: Callable[[Store], bool]) -> None:
        """Forget the first stores that have ended, and the loads that waited for these stores alone."""
        while self._entries and (self._entries[0][1] is None or is_done(self._entries[0][1])):
            self._entries.pop(0)

    @property
    def excess_bytes(self) -> int:
        """Most bytes in memory beyond the plan's count, now or when some of the stores have ended."""
        most = total = 0
        for num_bytes, _ in reversed(self._entries):
            total += num_bytes
            most = max(most, total)
        return most
