"""Caches: which rows of a feature store lie in the hot tier, and in which slot of it. A cache decides; it moves no row.

The hot tier has a number of slots, each with room for one row. A cache is asked batch by batch. Its decisions depend on the ids that
it was given, and on their order, alone. They are the same whatever the number of threads, because one thread makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch

from sagann.graph.widths import id_dtype

Array: TypeAlias = np.ndarray[Any, Any]

NO_SLOT = -1
"Stands in the place of a slot for a row that has none."
NO_ROW = -1
"Stands in the place of a row's id for a slot that has none."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Decision:
    """What a cache decides for the rows of a batch."""

    slots: Array
    """int32 [n]: the slot of each row; NO_SLOT for a row that is not kept. If a slot stands for several rows, the cache evicts
    all of them but the one in ``owners``; those that are resident must be copied before the slot is filled anew."""
    is_resident: Array
    "bool [n]: whether the row had its slot before the batch. A row with a slot that is not resident shall be filled in."


class Cache(Protocol):
    """A policy of the hot tier: it is asked where the rows of one batch after the other lie."""

    num_rows: int
    "Number of rows of the feature store."
    num_slots: int
    "Number of rows that the hot tier has room for."
    owners: Array
    "int32 or int64 [num_slots]: the row that each slot is for, or NO_ROW. It shows the decisions that were made last."

    def place(self, ids: Array) -> Decision:
        """Decide for the rows of a batch, int64 [n], each below ``num_rows``."""

    @staticmethod
    def state_bytes(num_rows: int, num_slots: int, *, has_order: bool) -> int:
        """Bytes of memory of the cache's own tables, without the rows in the slots.

        ``has_order``: whether the cache is given an order of the rows, the hottest first.
        """


@runtime_checkable
class AnnouncingCache(Cache, Protocol):
    """A cache that is told about batches before their rows are needed."""

    @property
    def num_announced(self) -> int:
        """Number of batches that are announced and not yet placed."""

    def announce(self, ids: Array) -> None:
        """Add a batch, int64 [n], at the end of the window. Callers must not modify the ids until the batch is placed."""

    def place_next(self) -> Decision:
        """Decide for the oldest announced batch, which leaves the window."""

    def withdraw(self) -> None:
        """Forget all announced batches."""


def id_type(num_rows: int) -> np.dtype[Any]:
    """The narrowest type that a cache uses for ids of rows."""
    return np.dtype(np.int32 if id_dtype(num_rows) == torch.int32 else np.int64)
