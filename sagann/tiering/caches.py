"""The caches: policies of the hot tier that one loop can compare."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from sagann.tiering.look_ahead import LookAhead
from sagann.tiering.static import Static

Cache: TypeAlias = Static | LookAhead
"""A policy of the hot tier. ``owners``, int32 or int64 [num_slots], has the row that each slot is for, or NO_ROW; ``is_fixed`` says that they never change.
``place(ids)`` gives the slots of the rows of a batch, int32 [n], NO_SLOT for a row without one; so does ``slots_of`` for what ``announce(ids)`` returns.
``state_bytes`` are the bytes of its tables, without the rows in the slots."""

CACHES: Mapping[str, type[Static] | type[LookAhead]] = MappingProxyType({"static": Static, "look-ahead": LookAhead})
"""The caches by name. Each is called with the number of rows, the number of slots and the ids of rows, the hottest first, or None."""
