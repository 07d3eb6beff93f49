"""S3-FIFO: an adaptive cache that knows only what it was asked for.

A new row enters a small queue. If it was asked for at least twice while it passed through that queue, it moves to the main queue, else it
is evicted, and its id is remembered for a while. A row that returns while it is remembered enters the main queue at once. The main queue
gives a row that was asked for another turn for each of its last three uses.

Most rows of an epoch of mini-batches are far neighbours that are read once: the small queue lets them pass without evicting hot
rows. SIEVE, a simpler policy, has one queue and no such filter, and is not scan-resistant.

References:
    Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023, Algorithm 1. We differ in that rows that are known
    to be hot begin in the main queue.
    Zhang et al., SIEVE is simpler than LRU: an efficient turn-key eviction algorithm for web caches, NSDI 2024.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sagann.jit import compiled
from sagann.tiering.cache import NO_ROW, Array, Decision, id_type
from sagann.tiering.prefetch import AHEAD, prefetch_by_id

SMALL_SHARE = 10
"The small queue holds one slot of so many, as in the paper."
_MOST_USES = 3
_USES_TO_STAY = 2
# Entries of a row's slot: no slot, and -2 - g for a row that is remembered at position g of the ghost queue.
_ABSENT, _GHOST = -1, -2
# Counters of the queues: where the next slot enters, and how many slots are in the queue.
_SMALL_END, _SMALL_SIZE, _MAIN_END, _MAIN_SIZE, _GHOST_END, _USED = range(6)
_COUNTERS = 6


class S3Fifo:
    """A cache with a small, a main and a ghost queue.

    Args:
        num_rows: number of rows of the feature store.
        num_slots: number of rows that the hot tier has room for.
        hottest: int64 [n], distinct ids of rows, the hottest first: the cache begins with the first ``num_slots`` of them. None
            for an empty cache.
    Example:
        >>> cache = S3Fifo(100, 2)
        >>> cache.place(np.array([7, 8])).is_resident.tolist(), cache.place(np.array([8, 9])).is_resident.tolist()
        ([False, False], [True, False])
    """

    def __init__(self, num_rows: int, num_slots: int, hottest: Array | None = None) -> None:
        self.num_rows, self.num_slots = num_rows, num_slots
        self._small_slots = _num_small(num_slots)
        self.owners = np.full(num_slots, NO_ROW, id_type(num_rows))
        self._slot_of = np.full(num_rows, _ABSENT, np.int32)
        self._uses = np.zeros(num_slots, np.uint8)
        self._small, self._main = np.empty(num_slots, np.int32), np.empty(num_slots, np.int32)
        self._ghosts = np.full(_num_ghosts(num_slots), NO_ROW, id_type(num_rows))
        self._counters = np.zeros(_COUNTERS, np.int64)
        if hottest is not None:
            kept = hottest[:num_slots]
            # The coldest one is evicted first.
            self.owners[: len(kept)] = kept[::-1]
            self._slot_of[kept[::-1]] = self._main[: len(kept)] = np.arange(len(kept))
            self._counters[[_MAIN_END, _MAIN_SIZE, _USED]] = len(kept) % max(1, num_slots), len(kept), len(kept)

    def place(self, ids: Array) -> Decision:
        """Find the slots of the rows of a batch; every row that has none gets one."""
        slots, is_resident = np.full(len(ids), _ABSENT, np.int32), np.zeros(len(ids), np.bool_)
        if self.num_slots:
            queues = self._small, self._main, self._ghosts, self._counters, self._small_slots
            _place(ids, slots, is_resident, self._slot_of, self.owners, self._uses, *queues)
        return Decision(slots=slots, is_resident=is_resident)

    @staticmethod
    def state_bytes(num_rows: int, num_slots: int, *, has_order: bool) -> int:
        """Bytes of memory of the tables by row and by slot, and of the three queues."""
        id_bytes = id_type(num_rows).itemsize
        return 4 * num_rows + (9 + id_bytes) * num_slots + id_bytes * _num_ghosts(num_slots) + 8 * _COUNTERS


def _num_small(num_slots: int) -> int:
    return max(1, num_slots // SMALL_SHARE)


def _num_ghosts(num_slots: int) -> int:
    """Number of rows that are remembered: as many as the main queue has slots."""
    return max(1, num_slots - _num_small(num_slots))


@compiled(inline="always")
def _push(queue: Array, counters: Array, end: int, slot: Any) -> None:
    """Enter a slot; ``end`` is the counter of the queue's end, the next counter that of its size."""
    queue[counters[end]] = slot
    counters[end] = counters[end] + 1 if counters[end] + 1 < len(queue) else 0
    counters[end + 1] += 1


@compiled(inline="always")
def _pop(queue: Array, counters: Array, end: int) -> Any:
    """Take the slot that entered first."""
    first = counters[end] - counters[end + 1]
    counters[end + 1] -= 1
    return queue[first if first >= 0 else first + len(queue)]


@compiled()
def _evict(
    slot_of: Array,
    owners: Array,
    uses: Array,
    small: Array,
    main: Array,
    ghosts: Array,
    counters: Array,
    small_slots: int,
) -> Any:
    """Evict a row and return its slot."""
    while True:
        if counters[_SMALL_SIZE] >= small_slots or counters[_MAIN_SIZE] == 0:
            slot = _pop(small, counters, _SMALL_END)
            if uses[slot] >= _USES_TO_STAY:
                uses[slot] = 0
                _push(main, counters, _MAIN_END, slot)
                continue
            at = counters[_GHOST_END]
            forgotten = ghosts[at]
            if forgotten != NO_ROW and slot_of[forgotten] == _GHOST - at:
                slot_of[forgotten] = _ABSENT
            ghosts[at] = owners[slot]
            slot_of[owners[slot]] = _GHOST - at
            counters[_GHOST_END] = at + 1 if at + 1 < len(ghosts) else 0
            return slot
        slot = _pop(main, counters, _MAIN_END)
        if uses[slot] == 0:
            slot_of[owners[slot]] = _ABSENT
            return slot
        uses[slot] -= 1
        _push(main, counters, _MAIN_END, slot)


@compiled()
def _place(
    ids: Array,
    slots: Array,
    is_resident: Array,
    slot_of: Array,
    owners: Array,
    uses: Array,
    small: Array,
    main: Array,
    ghosts: Array,
    counters: Array,
    small_slots: int,
) -> None:
    for position in range(len(ids)):
        if position % AHEAD == 0:
            prefetch_by_id(slot_of, ids, position)
        row = ids[position]
        found = slot_of[row]
        if found >= 0:
            uses[found] = min(uses[found] + 1, _MOST_USES)
            slots[position], is_resident[position] = found, True
            continue
        if counters[_USED] < len(owners):
            slot = np.int32(counters[_USED])
            counters[_USED] += 1
        else:
            slot = _evict(slot_of, owners, uses, small, main, ghosts, counters, small_slots)
        # The ghost queue may just have forgotten the row; it counts as remembered when it was asked for.
        if found <= _GHOST:
            _push(main, counters, _MAIN_END, slot)
        else:
            _push(small, counters, _SMALL_END, slot)
        owners[slot], slot_of[row], uses[slot] = row, slot, 0
        slots[position] = slot
