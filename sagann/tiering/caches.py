"""The caches: policies of the hot tier that one loop can compare."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, TypeAlias

import numpy as np

from sagann.jit import Array
from sagann.tiering.look_ahead import NO_ROW, NO_SLOT, Announced, LookAhead, id_type


class Static:
    """The hottest rows have a slot each, in the order of ``hottest``; other rows never have one. Threads may ask at once.

    Without ``hottest``, ids are in the order of heat, as of a graph that was reordered by score, and no table is needed.

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


Cache: TypeAlias = Static | LookAhead
"""A policy of the hot tier. ``owners``, int32 or int64 [num_slots], has the row that each slot is for, or NO_ROW; ``is_fixed`` says that they never change.
``place(ids)`` gives the slots of the rows of a batch, int32 [n], NO_SLOT for a row without one; so does ``slots_of`` for what ``announce(ids)`` returns.
``state_bytes`` are the bytes of its tables, without the rows in the slots."""

CACHES: Mapping[str, type[Static] | type[LookAhead]] = MappingProxyType({"static": Static, "look-ahead": LookAhead})
"""The caches by name. Each is called with the number of rows, the number of slots and the ids of rows, the hottest first, or None."""
