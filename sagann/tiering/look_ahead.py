"""Look-ahead: a cache that knows the next batches and evicts the row that is used farthest in the future.

The sampler is deterministic, so the ids of the next batches can be known before their rows are needed. Announced batches form a window.
After each batch the cache keeps, of the rows in its slots and those of the batch, the ones that are used next (Belady's rule). So the number
of rows that are read for the batches of a window is the least possible. A row without a use in the window is evicted first, the coldest by a
given order before others, and of equally cold ones the one whose last use is the longest ago.

Slots with the same next use are in a list, one for each announced batch and for each level of heat, so a decision takes constant time per row.

References:
    Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5(2), 1966.
    Park, Min and Lee, Ginex: SSD-enabled billion-scale graph neural network training on a single machine via provably optimal
    in-memory caching, VLDB 2022, Sec. 4. We differ in that the window moves on batch by batch, where Ginex plans one superbatch after
    the other, and that decisions are made while rows are loaded, not in a pass before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple
from weakref import ref

import numpy as np
import torch

from sagann.graph.rows import id_dtype
from sagann.jit import Array, compiled
from sagann.kernels.edge.cpu.block import prefetcher

NO_SLOT = -1
"Stands in the place of a slot for a row that has none."
NO_ROW = -1
"Stands in the place of a row's id for a slot that has none."


@dataclass(kw_only=True, slots=True, weakref_slot=True, eq=False)
class Announced:
    """A batch that was announced to a cache. Drop it to withdraw it."""

    ids: Array
    "int64 [n]: its rows."
    slots: Array | None = None
    "The slot of each row; None before the cache has decided."


def id_type(num_rows: int) -> np.dtype[Any]:
    """The narrowest type that a cache uses for ids of rows."""
    return np.dtype(np.int32 if id_dtype(num_rows) == torch.int32 else np.int64)


AHEAD = 128
"Number of ids whose entries are prefetched before the first of them is used: a loop that waits for one after the other is slow."
_four_bytes, _eight_bytes = prefetcher("i4", 1), prefetcher("i8", 1)
MOST_BATCHES = 1 << 16
"Largest number of batches in a window. Before one more is announced, the cache decides for the oldest."
LEVELS = 64
"Number of levels of heat: each has a 32nd of the slots' number of rows, and the last one all colder rows."
_LEVELS_OF_SLOTS = LEVELS // 2
# Values of a table of next uses beside numbers of batches: the row is not used again; the batch has the row twice.
_NEVER, _REPEATED = -1, -2
_NO_ACCESS = -1
# Positions of accesses and numbers of batches are counted modulo 2^31.
_LOW = (1 << 31) - 1
_FEWEST_ACCESSES = 1 << 12
# Lists begin and end at nodes of their own behind those of the slots: first those of the levels, then those of the batches.
_USED, _NEWEST, _COLDEST = range(3)
_COUNTERS = 3


class _Tables(NamedTuple):
    """What a cache knows, by row and by slot."""

    slot_of: Array
    "int32 [num_rows]: the slot of each row, or NO_SLOT."
    last_access: Array
    "int32 [num_rows]: the position of each row's last access in the window, or _NO_ACCESS."
    levels: Array
    "uint8 [num_rows]: the level of heat of each row."
    owners: Array
    "int32 or int64 [num_slots]: the row that each slot is for, or NO_ROW."
    lists: Array
    "int32 [num_nodes, 2], doubly linked circular lists: for each node the node before it and the node after it."
    counters: Array
    "int64 [_COUNTERS]."


class LookAhead:
    """A cache to which batches are announced before they are placed. It decides for them in the order of the announcements.

    Example:
        >>> cache = LookAhead(10, 1)
        >>> batches = [cache.announce(np.array(ids)) for ids in ([1, 2], [3, 2], [1])]
        >>> [cache.slots_of(batch).tolist() for batch in batches]
        [[0, 0], [-1, 0], [-1]]
    """

    is_fixed: ClassVar[bool] = False

    def __init__(self, num_rows: int, num_slots: int, hottest: Array | None = None) -> None:
        self.owners = np.full(num_slots, NO_ROW, id_type(num_rows))
        nodes = np.arange(num_slots + LEVELS + MOST_BATCHES, dtype=np.int32)
        self._tables = tables = _Tables(
            slot_of=np.full(num_rows, NO_SLOT, np.int32),
            last_access=np.full(num_rows, _NO_ACCESS, np.int32),
            levels=np.full(num_rows, LEVELS - 1, np.uint8),
            owners=self.owners,
            lists=np.repeat(nodes[:, None], 2, axis=1),
            counters=np.zeros(_COUNTERS, np.int64),
        )
        self._next_uses = np.empty(_FEWEST_ACCESSES, np.int32)
        "Of every access in the window, in a ring: the batch that uses the row next, _NEVER or _REPEATED."
        self._window: deque[tuple[Array, ref[Announced]]] = deque()
        "The announced batches that are not decided for, the oldest first."
        self._first_batch = self._first_access = self._num_accesses = 0
        if hottest is not None:
            heat = np.arange(len(hottest)) * _LEVELS_OF_SLOTS // max(1, num_slots)
            tables.levels[hottest] = heat.clip(max=LEVELS - 1)
            kept = hottest[:num_slots]
            self.owners[: len(kept)] = kept
            tables.slot_of[kept] = np.arange(len(kept))
            _keep_first(len(kept), tables)

    def announce(self, ids: Array) -> Announced:
        """Add a batch at the end of the window. Batches at its beginning that were dropped leave it."""
        while self._window and (len(self._window) == MOST_BATCHES or self._window[0][1]() is None):
            self._place_oldest()
        self._make_room(len(ids))
        begin = (self._first_access + self._num_accesses) & _LOW
        number = (self._first_batch + len(self._window)) & _LOW
        _announce(ids, begin, number, self._first_batch, self._next_uses, self._tables)
        batch = Announced(ids=ids)
        self._window.append((ids, ref(batch)))
        self._num_accesses += len(ids)
        return batch

    def slots_of(self, batch: Announced) -> Array:
        """The slots of the rows of an announced batch, int32 [n], which leaves the window with all that were announced before it.

        If a slot stands for several rows, the cache evicts all of them but the one in ``owners``; rows that lie in the slot must be copied
        before it is filled anew.
        """
        while batch.slots is None:
            self._place_oldest()
        return batch.slots

    def _place_oldest(self) -> None:
        ids, batch_of = self._window.popleft()
        slots = np.full(len(ids), NO_SLOT, np.int32)
        _place(ids, self._first_access, self._first_batch, self._next_uses, slots, self._tables)
        self._first_batch = (self._first_batch + 1) & _LOW
        self._first_access = (self._first_access + len(ids)) & _LOW
        self._num_accesses -= len(ids)
        if (batch := batch_of()) is not None:
            batch.slots = slots

    def place(self, ids: Array) -> Array:
        """Find the slots of rows that were not announced. The cache stays as it is."""
        return self._tables.slot_of.take(ids)

    @staticmethod
    def state_bytes(num_rows: int, num_slots: int, *, has_order: bool) -> int:
        """Bytes of memory of the tables by row and by slot, and of the lists. The announced ids are not among them."""
        num_nodes = num_slots + LEVELS + MOST_BATCHES
        return 9 * num_rows + id_type(num_rows).itemsize * num_slots + 8 * (num_nodes + _COUNTERS)

    def _make_room(self, added: int) -> None:
        """Let the ring of next uses have room for ``added`` more accesses."""
        capacity = len(self._next_uses)
        while capacity < self._num_accesses + added:
            capacity *= 2
        if capacity > len(self._next_uses):
            at = (self._first_access + np.arange(self._num_accesses)) & _LOW
            larger = np.empty(capacity, np.int32)
            larger[at & (capacity - 1)] = self._next_uses[at & (len(self._next_uses) - 1)]
            self._next_uses = larger


@compiled(inline="always")
def prefetch_by_id(table: Array, ids: Array, first: int) -> None:
    """Prefetch the entries, 4 bytes each, of AHEAD ids from position ``first`` on."""
    address = np.int64(table.ctypes.data)
    for position in range(first, min(first + AHEAD, len(ids))):
        _four_bytes(address, ids[position])


@compiled(inline="always")
def prefetch_by_slot(table: Array, slot_of: Array, ids: Array, first: int) -> None:
    """Prefetch the entries, 8 bytes each, of the slots of AHEAD ids from position ``first`` on."""
    address = np.int64(table.ctypes.data)
    for position in range(first, min(first + AHEAD, len(ids))):
        slot = np.int64(slot_of[ids[position]])
        if slot >= 0:
            _eight_bytes(address, slot)


@compiled(inline="always")
def _unlink(slot: Any, lists: Array) -> None:
    before, after = lists[slot, 0], lists[slot, 1]
    lists[before, 1], lists[after, 0] = after, before


@compiled(inline="always")
def _link(slot: Any, node: Any, lists: Array) -> None:
    """Add a slot at the end of the list that begins and ends at ``node``."""
    last = lists[node, 0]
    lists[slot, 0], lists[slot, 1] = last, node
    lists[last, 1] = lists[node, 0] = slot


@compiled(inline="always")
def _batch_node(batch: Any, num_slots: Any) -> Any:
    return num_slots + LEVELS + (batch & (MOST_BATCHES - 1))


@compiled(inline="always")
def _link_by_use(slot: Any, use: Any, row: Any, first: int, tables: _Tables) -> None:
    """Add a slot to the list of its row's next use; ``first`` is the oldest batch of the window."""
    lists, counters, num_slots = tables.lists, tables.counters, len(tables.owners)
    if use == _NEVER:
        level = np.int64(tables.levels[row])
        counters[_COLDEST] = max(counters[_COLDEST], level)
        _link(slot, num_slots + level, lists)
    else:
        counters[_NEWEST] = max(counters[_NEWEST], (use - first) & _LOW)
        _link(slot, _batch_node(use, num_slots), lists)


@compiled()
def _keep_first(count: int, tables: _Tables) -> None:
    """Add the first slots to the lists of their levels, the coldest first."""
    tables.counters[_USED] = count
    for slot in range(count - 1, -1, -1):
        _link_by_use(slot, _NEVER, tables.owners[slot], 0, tables)


@compiled()
def _announce(ids: Array, begin: int, batch: int, first: int, next_uses: Array, tables: _Tables) -> None:
    """Note the batch as the next use of its rows: at their last accesses in the window, or else at their slots."""
    slot_of, last_access, lists, counters = tables.slot_of, tables.last_access, tables.lists, tables.counters
    mask, num_slots = len(next_uses) - 1, len(tables.owners)
    node, distance = _batch_node(batch, num_slots), (batch - first) & _LOW
    for position in range(len(ids)):
        if position % AHEAD == 0:
            prefetch_by_id(last_access, ids, position)
            prefetch_by_id(slot_of, ids, position)
            prefetch_by_slot(lists, slot_of, ids, position)
        row = ids[position]
        at = (begin + position) & _LOW
        before = np.int64(last_access[row])
        if before == _NO_ACCESS:
            slot = slot_of[row]
            if slot >= 0:
                _unlink(slot, lists)
                _link(slot, node, lists)
                counters[_NEWEST] = max(counters[_NEWEST], distance)
        elif ((before - begin) & _LOW) < position:
            next_uses[at & mask] = _REPEATED
            continue
        else:
            next_uses[before & mask] = batch
        next_uses[at & mask] = _NEVER
        last_access[row] = at


@compiled(inline="always")
def _farthest(first: int, num_slots: int, lists: Array, counters: Array) -> Any:
    """The list that is evicted from, and how far its next use is: the coldest level, or else the newest batch."""
    while counters[_COLDEST] >= 0:
        node = num_slots + counters[_COLDEST]
        if lists[node, 1] != node:
            return node, MOST_BATCHES + counters[_COLDEST]
        counters[_COLDEST] -= 1
    while True:
        node = _batch_node(first + counters[_NEWEST], num_slots)
        if lists[node, 1] != node or counters[_NEWEST] == 0:
            return node, counters[_NEWEST]
        counters[_NEWEST] -= 1


@compiled()
def _place(ids: Array, begin: int, batch: int, next_uses: Array, slots: Array, tables: _Tables) -> None:
    slot_of, last_access, owners = tables.slot_of, tables.last_access, tables.owners
    lists, counters = tables.lists, tables.counters
    mask, num_slots = len(next_uses) - 1, len(owners)
    # Distances are counted from the batch after this one, which is the oldest of the window from now on.
    first = (batch + 1) & _LOW
    counters[_NEWEST] = max(counters[_NEWEST] - 1, 0)
    # Rows with slots move to the lists of their next uses, and the list of this batch becomes empty.
    for position in range(len(ids)):
        if position % AHEAD == 0:
            prefetch_by_id(last_access, ids, position)
            prefetch_by_id(slot_of, ids, position)
            prefetch_by_slot(lists, slot_of, ids, position)
        row = ids[position]
        slot = slot_of[row]
        slots[position] = slot
        use = np.int64(next_uses[(begin + position) & _LOW & mask])
        if use == _NEVER:
            last_access[row] = _NO_ACCESS
        if slot >= 0 and use != _REPEATED:
            _unlink(slot, lists)
            _link_by_use(slot, use, row, first, tables)
    # Other rows get slots while there is one whose row is used later.
    for position in range(len(ids)):
        use = np.int64(next_uses[(begin + position) & _LOW & mask])
        if slots[position] >= 0 or use == _REPEATED:
            continue
        row = ids[position]
        if counters[_USED] < num_slots:
            slot = counters[_USED]
            counters[_USED] += 1
        else:
            node, farthest = _farthest(first, num_slots, lists, counters)
            distance = MOST_BATCHES + np.int64(tables.levels[row]) if use == _NEVER else (use - first) & _LOW
            if num_slots == 0 or distance >= farthest:
                continue
            slot = np.int64(lists[node, 1])
            _unlink(slot, lists)
            slot_of[owners[slot]] = NO_SLOT
        owners[slot], slot_of[row] = row, slot
        slots[position] = slot
        _link_by_use(slot, use, row, first, tables)
