"""Batches that were announced to a tiered store: their ids, and a cache's decisions for those that it has passed."""

from __future__ import annotations

from collections import deque

from sagann.errors import InputError, shown
from sagann.tiering import AnnouncingCache, Cache, Decision
from sagann.tiering.cache import Array
from sagann.tiering.look_ahead import MOST_BATCHES


class Announced:
    """The announced batches by number. The caller holds the lock of the store in every method.

    Args:
        cache: hears of the batches in their order, if it wants to.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._ids: dict[int, Array] = {}
        "Ids by number, of batches whose rows were not asked for."
        self._undecided: deque[int] = deque()
        "Numbers of the batches that the cache has not decided for."
        self._decisions: dict[int, Decision] = {}
        "Decisions by number, of batches whose rows were not copied."
        self._last = -1

    def add(self, number: int, ids: Array) -> None:
        """Add a batch behind all others."""
        where = "TieredFeatures.announce, number"
        if number <= self._last:
            raise InputError(
                "batches are announced in ascending order",
                value=f"number {number} after {self._last}",
                where=where,
                fix="Number the batches on through all epochs, or call withdraw() first.",
            )
        if len(self._ids) == MOST_BATCHES or len(self._undecided) == MOST_BATCHES:
            raise InputError(
                "too many batches are announced",
                value=f"{MOST_BATCHES} wait for rows_of, which is the limit",
                where=where,
                fix="Ask for the rows of earlier batches first, or call withdraw().",
            )
        self._ids[number], self._last = ids, number
        if isinstance(self._cache, AnnouncingCache):
            self._cache.announce(ids)
            self._undecided.append(number)

    def take(self, number: int) -> Array:
        """The ids of a batch, once."""
        if number not in self._ids:
            raise InputError(
                "batch was not announced",
                value=f"{shown(number)}, {len(self._ids)} batches wait for rows_of",
                where="TieredFeatures.rows_of, number",
                fix="Call announce(number, ids) first, and rows_of(number) once.",
            )
        return self._ids.pop(number)

    def place(self, number: int, ids: Array) -> Decision:
        """The cache's decision for a batch that was taken."""
        if isinstance(self._cache, AnnouncingCache):
            while number not in self._decisions and self._undecided:
                self._decisions[self._undecided.popleft()] = self._cache.place_next()
        # A batch that was withdrawn after it was taken is like one that was not announced.
        return self._decisions.pop(number, None) or self._cache.place(ids)

    def withdraw(self) -> None:
        """Forget all batches that were not taken."""
        self._ids.clear()
        self._undecided.clear()
        self._decisions.clear()
        self._last = -1
        if isinstance(self._cache, AnnouncingCache):
            self._cache.withdraw()
