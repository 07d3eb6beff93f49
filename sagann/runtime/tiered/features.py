"""TieredFeatures: a feature store whose hot rows lie in memory and whose cold rows are read from where they are.

A row is copied to the result once, from the tier where it lies. What lies in the slots of the hot tier is decided by a cache
(:mod:`sagann.tiering`), which is asked batch by batch.

Invariants:

- ``_arrived[slot]`` is the row whose bytes lie in a slot; ``cache.owners[slot]`` is the row that the slot is for. Both are used while the
  lock is held; cold rows are read while it is not. A cache that never changes its mind (``static``) needs no lock.
- A row that has a slot but has not arrived is read from the cold tier, by every thread that needs it. So no thread waits for the reads of
  another one, and a read that fails leaves nothing behind.
- The cache "look-ahead" decides for announced batches in their order. Of a batch that was dropped nothing is kept and nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError, require_choice
from sagann.graph.feature_store import Features, FeatureStore, feature_store, row_bytes
from sagann.graph.large_arrays import empty_array
from sagann.graph.rows import as_bytes
from sagann.jit import Array, compiled
from sagann.runtime.tiered.cold_rows import StoreInTiers, checked_ids
from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.runtime.tiered.hot_size import HotSize, hot_rows
from sagann.storage.scattered import copy_row
from sagann.tiering import CACHES, Cache
from sagann.tiering.look_ahead import Announced, id_type

_PRELOAD_BYTES = 64 << 20
"Largest number of bytes of hot rows that are read at a time when a store is made."


@dataclass(kw_only=True, slots=True, eq=False)
class Announcement:
    """A batch whose rows will be asked for once. Its loader keeps it, or drops it to give the batch up."""

    store: object
    "The mark of the store where the batch was announced; None after its rows were asked for."
    batch: Announced
    "The batch, as the store's cache knows it."


class TieredFeatures(StoreInTiers):
    """The rows of features, the hot ones kept in memory. Every row has the bits that it has in ``features``.

    The store is a feature store like any other, and ``Graph.features`` may be one. Several threads may ask at once.

    Args:
        features: rows of all vertices. A tensor that is mapped from a file, such as the features of a dataset that is too large for
            memory, is read by positioned reads; another store is asked for its rows.
        hot: size of the hot tier. A number of bytes, or a text as "2GiB", is the memory for hot rows and for the tables that find
            them. A float, or a text as "10%", is a part of the rows. "auto" takes half of the memory that is free.
        cache: what is hot: "static" (the hottest rows stay) or "look-ahead" (rows of announced batches stay by next use).
        hottest: int64 [n], distinct ids of vertices, the hottest first. The hot tier begins with the first of them. None
            stands for the order of the ids with "static", as after a reordering by score, and for an empty hot tier otherwise.
    Raises:
        InputError: an argument is wrong, the features are sparse, on a device or require a gradient, or the memory is not free.
        DatasetError: the file ends too early, or cannot be read.
    References:
        Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 4. We differ in that the tiers here are memory and
        disk, and that the hot rows may change.
    Example:
        >>> store = TieredFeatures(torch.arange(12.0).reshape(6, 2), hot="50%", hottest=torch.tensor([5, 0, 3]))
        >>> store.rows(torch.tensor([5, 1, 0])).tolist()
        [[10.0, 11.0], [2.0, 3.0], [0.0, 1.0]]
        >>> store.traffic().hot.rows, store.traffic().cold.rows
        (2, 1)
    """

    def __init__(
        self,
        features: Features,
        hot: HotSize = "auto",
        *,
        cache: str = "static",
        hottest: Tensor | None = None,
    ) -> None:
        require_choice(cache, CACHES, what="unknown cache", where="TieredFeatures, cache")
        super().__init__(features, hottest)
        order, self._order = self._order, None
        store = feature_store(features)
        num_slots, self._table_bytes = _slots_and_tables(store, hot, cache, has_order=order is not None)
        self._cache: Cache = CACHES[cache](self.num_rows, num_slots, order)
        self._hot = np.empty((num_slots, self.row_bytes), np.uint8)
        self._arrived = self._cache.owners.copy()
        self._traffic = Traffic()
        self._mark = object()
        "Stands for the store in announcements, which do not keep it."
        self._lock = Lock()
        self._slots_lock: AbstractContextManager[Any] = nullcontext() if self._cache.is_fixed else self._lock
        self._preload()

    @property
    def num_hot_rows(self) -> int:
        """Number of rows that the hot tier has room for."""
        return len(self._hot)

    @property
    def hot_bytes(self) -> int:
        """Bytes of the hot tier: of the rows, and of the tables that find them."""
        return self._hot.nbytes + self._table_bytes

    def rows(self, ids: Tensor) -> Tensor:
        """Copy the rows of some vertices: [n, *row_shape], for int64 ids [n], in their order.

        Raises:
            InputError: an id is no vertex.
            DatasetError: the file ends too early, or cannot be read.
        """
        found = checked_ids(ids, self.num_rows, "TieredFeatures.rows, ids")
        return self._load(found, lambda: self._cache.place(found))

    @property
    def wants_announcements(self) -> bool:
        """Whether announcing batches saves reads: whether the cache is "look-ahead"."""
        return not self._cache.is_fixed

    def announce(self, ids: Tensor) -> Announcement:
        """Tell which rows a batch will read; see :class:`sagann.graph.feature_store.AnnouncedFeatures`.

        Args:
            ids: int64 [n]. Callers must not modify them until the rows are given.
        Returns:
            What :meth:`rows_of` is asked with. A batch is given up by dropping it.
        Raises:
            InputError: an id is no vertex.
        """
        found = checked_ids(ids, self.num_rows, "TieredFeatures.announce, ids")
        with self._lock:
            return Announcement(store=self._mark, batch=self._cache.announce(found))

    def rows_of(self, announcement: Announcement) -> Tensor:
        """The rows of an announced batch, once, in the order of its ids.

        The cache "look-ahead" decides for batches in the order in which they were announced, whichever thread asks first.

        Raises:
            InputError: the announcement is of another store, or its rows were given before.
            DatasetError: see :meth:`rows`.
        """
        with self._lock:
            if not isinstance(announcement, Announcement) or announcement.store is not self._mark:
                raise InputError(
                    "batch does not wait for its rows: they were given before, or are another store's (in TieredFeatures.rows_of, announcement)",
                    hint="Pass what announce(ids) returns, and each announcement once.",
                )
            announcement.store = None
        return self._load(announcement.batch.ids, lambda: self._cache.slots_of(announcement.batch))

    def traffic(self) -> Traffic:
        """Rows and bytes that each tier has given so far."""
        with self._lock:
            return self._traffic

    def fixed_rows(self) -> tuple[Array, Array] | None:
        """The rows that lie in memory as long as the store does: their ids, [n], and their bytes, uint8 [n, bytes of a row].

        None where the cache may fill a slot anew.
        """
        if not self._cache.is_fixed:
            return None
        count = int((self._arrived >= 0).sum())
        return self._arrived[:count], self._hot[:count]

    def _load(self, ids: Array, decide: Callable[[], Array]) -> Tensor:
        """Copy hot rows, read cold rows, and let those of them that have slots arrive there."""
        into = empty_array((len(ids), *self.row_shape), self.dtype, torch.device("cpu"))
        if not into.numel():
            return into
        target, missing = as_bytes(into), np.empty(len(ids), np.int64)
        with self._slots_lock:
            slots = decide()
            missing = missing[: _copy_hot(ids, slots, self._arrived, self._hot, target, missing)]
        reads = self._cold.read(ids[missing], target, missing)
        with self._lock:
            if not self._cache.is_fixed:
                _keep(ids, slots, missing, self._cache.owners, self._arrived, self._hot, target)
            self._traffic += Traffic(
                hot=TierCounts.of(len(ids) - len(missing), self.row_bytes),
                cold=TierCounts.of(len(missing), self.row_bytes),
                cold_reads=reads.num_reads,
                cold_read_bytes=reads.num_bytes,
            )
        return into

    def _preload(self) -> None:
        """Read the rows that the cache begins with."""
        slots = (self._arrived >= 0).nonzero()[0]
        slots = slots[self._arrived[slots].argsort()]
        step = max(1, _PRELOAD_BYTES // max(1, self.row_bytes))
        for first in range(0, len(slots), step):
            part = slots[first : first + step]
            self._cold.read_once(self._arrived[part].astype(np.int64), self._hot, part)


def hot_tier_bytes(features: Features, hot: HotSize, *, cache: str) -> int:
    """Bytes of the hot tier, rows and tables, that a :class:`TieredFeatures` with these arguments and an order of the rows would have."""
    store = feature_store(features)
    num_slots, table_bytes = _slots_and_tables(store, hot, cache, has_order=True)
    return num_slots * row_bytes(store) + table_bytes


def _slots_and_tables(store: FeatureStore, hot: HotSize, cache: str, *, has_order: bool) -> tuple[int, int]:
    """Number of slots of a hot tier, and bytes of the tables of its cache and of the rows that have arrived."""

    def table_bytes(num_slots: int) -> int:
        arrived_bytes = id_type(store.num_rows).itemsize * num_slots
        return CACHES[cache].state_bytes(store.num_rows, num_slots, has_order=has_order) + arrived_bytes

    num_slots = hot_rows(hot, num_rows=store.num_rows, row_bytes=row_bytes(store), state_bytes=table_bytes)
    return num_slots, table_bytes(num_slots)


@compiled()
def _copy_hot(ids: Array, slots: Array, arrived: Array, hot: Array, target: Array, missing: Array) -> int:
    """Copy the rows that lie in their slots; write the positions of all others to ``missing``, and return their number."""
    num_missing = 0
    for position in range(len(ids)):
        slot = slots[position]
        if slot >= 0 and arrived[slot] == ids[position]:
            copy_row(hot, slot, target, position)
        else:
            missing[num_missing] = position
            num_missing += 1
    return num_missing


@compiled()
def _keep(
    ids: Array, slots: Array, missing: Array, owners: Array, arrived: Array, hot: Array, target: Array
) -> None:
    """Copy the rows that were read to their slots, unless a slot has another owner by now."""
    for number in range(len(missing)):
        position = missing[number]
        slot = slots[position]
        if slot >= 0 and owners[slot] == ids[position]:
            copy_row(target, position, hot, slot)
            arrived[slot] = ids[position]
