"""Caches in plain Python: lists and dictionaries that follow the definition of each policy, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations

MOST_USES = 3


class NaiveS3Fifo:
    """Algorithm 1 of the S3-FIFO paper."""

    def __init__(self, num_slots: int, hottest: Sequence[int] = ()) -> None:
        self.num_slots, self.small_slots = num_slots, max(1, num_slots // 10)
        self.num_ghosts = max(1, num_slots - self.small_slots)
        self.small: list[int] = []
        self.main: list[int] = list(reversed(hottest[:num_slots]))
        self.ghosts: list[int | None] = []
        self.uses = dict.fromkeys(self.main, 0)

    def place(self, ids: Iterable[int]) -> list[bool]:
        """Whether each row is resident when its turn comes."""
        return [self._place(row) for row in ids]

    def _place(self, row: int) -> bool:
        if not self.num_slots:
            return False
        if row in self.uses:
            self.uses[row] = min(self.uses[row] + 1, MOST_USES)
            return True
        queue = self.main if row in self.ghosts else self.small
        if len(self.uses) == self.num_slots:
            self._evict()
        # A place in the ghost queue stays until it has passed through; it is empty meanwhile.
        self.ghosts = [None if ghost == row else ghost for ghost in self.ghosts]
        queue.append(row)
        self.uses[row] = 0
        return False

    def _evict(self) -> None:
        while True:
            if len(self.small) >= self.small_slots or not self.main:
                row = self.small.pop(0)
                if self.uses[row] > 1:
                    self.uses[row] = 0
                    self.main.append(row)
                    continue
                self.ghosts = [*self.ghosts, row][-self.num_ghosts :]
                del self.uses[row]
                return
            row = self.main.pop(0)
            if not self.uses[row]:
                del self.uses[row]
                return
            self.uses[row] -= 1
            self.main.append(row)


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
