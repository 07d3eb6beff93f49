"""Static placement: the rows in the hot tier are chosen once and stay there."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sagann.tiering.cache import NO_ROW, NO_SLOT, Announced, Array, id_type


class Static:
    """The hottest rows have a slot each; other rows never have one. Threads may ask at once: no decision changes the cache.

    Args:
        num_rows: number of rows of the feature store.
        num_slots: number of rows that the hot tier has room for.
        hottest: int64 [n], distinct ids of rows, the hottest first; the first ``num_slots`` of them get a slot each, in this
            order. None stands for the order of the ids, in which a graph is that was reordered by score; no table is
            needed then.
    References:
        Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 4.1.
    Example:
        >>> cache = Static(5, 2, np.array([3, 1, 4]))
        >>> cache.place(np.array([0, 1, 3])).tolist()
        [-1, 1, 0]
    """

    is_fixed: ClassVar[bool] = True

    def __init__(self, num_rows: int, num_slots: int, hottest: Array | None = None) -> None:
        self.num_slots = num_slots
        self.owners = np.full(num_slots, NO_ROW, id_type(num_rows))
        self._slot_of: Array | None = None
        kept = np.arange(min(num_slots, num_rows)) if hottest is None else hottest[:num_slots]
        self.owners[: len(kept)] = kept
        if hottest is not None:
            self._slot_of = np.full(num_rows, NO_SLOT, np.int32)
            self._slot_of[kept] = np.arange(len(kept))

    def place(self, ids: Array) -> Array:
        """Find the slots of the rows of a batch."""
        if self._slot_of is not None:
            return self._slot_of.take(ids)
        return np.where(ids < self.num_slots, ids, NO_SLOT).astype(np.int32)

    def announce(self, ids: Array) -> Announced:
        """Accept a batch; no decision depends on it."""
        return Announced(ids=ids)

    def slots_of(self, batch: Announced) -> Array:
        """Find the slots of the rows of an announced batch."""
        return self.place(batch.ids)

    @staticmethod
    def state_bytes(num_rows: int, num_slots: int, *, has_order: bool) -> int:
        """Bytes of memory of the table of slots by row, if the rows have an order of their own, and of the table of rows by slot."""
        return (4 * num_rows if has_order else 0) + id_type(num_rows).itemsize * num_slots
