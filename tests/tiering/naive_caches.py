"""Caches in plain Python: lists and dictionaries that follow the definition of each policy, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations


class NaiveLookAhead:
    """Belady's rule for the announced batches: after each batch, the rows with the nearest next use stay."""

    def __init__(self, num_slots: int, hottest: Sequence[int] = (), levels: dict[int, int] | None = None) -> None:
        self.num_slots = num_slots
        self.levels = levels or {}
        self.kept = set(hottest[:num_slots])
        self.window: list[Sequence[int]] = []

    def num_resident(self) -> int:
        """Number of rows of the oldest batch that are resident, each counted once; the batch leaves the window."""
        batch = set(self.window.pop(0))
        found = len(batch & self.kept)
        # Only how urgent the rows are that stay is determined, not which of equally urgent rows.
        self.kept = set(sorted(self.kept | batch, key=self.urgency)[: self.num_slots])
        return found

    def urgency(self, row: int) -> tuple[int, int]:
        """Batches until the next use, and the level of heat among rows without one."""
        uses = [number for number, batch in enumerate(self.window) if row in batch]
        return (uses[0], 0) if uses else (len(self.window), self.levels.get(row, 0))


def least_reads(batches: Sequence[Iterable[int]], num_slots: int, kept: Iterable[int] = ()) -> int:
    """The least number of rows that any policy reads for some batches, by trying every set of rows after each batch."""
    sets = [frozenset(batch) for batch in batches]

    @cache
    def reads(number: int, held: frozenset[int]) -> int:
        if number == len(sets):
            return 0
        together = held | sets[number]
        count = min(num_slots, len(together))
        later = min(reads(number + 1, frozenset(some)) for some in combinations(sorted(together), count))
        return len(sets[number] - held) + later

    return reads(0, frozenset(kept))
