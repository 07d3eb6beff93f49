"""Caches: which rows of a feature store lie in the hot tier, and in which slot of it. A cache decides; it moves no row.

The hot tier has a number of slots, each with room for one row. A cache is asked batch by batch. Its decisions depend on the ids that
it was given, and on their order, alone. They are the same whatever the number of threads, because one thread makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from sagann.graph.rows import id_dtype

Array: TypeAlias = np.ndarray[Any, Any]

NO_SLOT = -1
"Stands in the place of a slot for a row that has none."
NO_ROW = -1
"Stands in the place of a row's id for a slot that has none."


@dataclass(kw_only=True, slots=True, weakref_slot=True, eq=False)
class Announced:
    """A batch that a cache was told of. It is given up by dropping it."""

    ids: Array
    "int64 [n]: its rows."
    slots: Array | None = None
    "The slot of each row; None before the cache has decided."


def id_type(num_rows: int) -> np.dtype[Any]:
    """The narrowest type that a cache uses for ids of rows."""
    return np.dtype(np.int32 if id_dtype(num_rows) == torch.int32 else np.int64)
