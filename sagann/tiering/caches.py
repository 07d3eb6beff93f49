"""The table of caches, by name: policies of the hot tier that one loop can compare."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sagann.tiering.look_ahead import LookAhead
from sagann.tiering.static import Static

CACHES: Mapping[str, Any] = MappingProxyType({"static": Static, "look-ahead": LookAhead})
"""The classes of caches by name. Each is called with the number of rows, the number of slots and the ids of rows, the hottest first,
or None; see :class:`sagann.tiering.Cache`."""
