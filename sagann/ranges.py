"""Ranges of the integers that files and arguments state, each written down once, under the name of its field or argument.

Readers of files and checks of arguments ask this table, so the same number has the same range wherever it is stated; the options of a run
have theirs in :mod:`sagann.config`. A number outside its range is refused before anything loops, allocates or multiplies by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType

from sagann.errors import InputError, shown


@dataclass(frozen=True, slots=True)
class Range:
    """The integers from ``low`` to ``high``.

    Example:
        >>> 7 in Range(1, 1000), True in Range(0, 1), "7" in Range(1, 1000)
        (True, False, False)
        >>> print(Range(0, 2**48 - 1))
        an integer from 0 to 2^48 - 1
    """

    low: int
    "Smallest integer of the range."
    high: int
    "Largest integer of the range."

    def __contains__(self, value: object) -> bool:
        # Integers of NumPy are integers too.
        return not isinstance(value, bool) and isinstance(value, Integral) and self.low <= int(value) <= self.high

    def __str__(self) -> str:
        high = str(self.high)
        for less, text in ((0, ""), (1, " - 1")):
            bits = (self.high + less).bit_length() - 1
            if self.high + less == 2**bits > 2**16:
                high = f"2^{bits}{text}"
        return f"an integer from {self.low} to {high}"


_RANGES = (
    # Rows of 8 bytes each then have fewer than 2^63 bytes, with room for 4096 columns.
    ("num_vertices num_edges num_classes num_graph_classes split", 0, 2**48 - 1),
    # The narrowest integers in which torch keeps columns and edge types have 32 bits.
    ("num_features num_edge_types edge_dim negatives", 0, 2**31 - 1),
    ("fanout measured parts", 1, 2**31 - 1),
    ("epochs hits batch_size num_cores cache_bytes", 1, 2**63 - 1),
    ("seed epoch batch iterations bytes", 0, 2**63 - 1),
    # With replacement, every destination gives as many edges.
    ("replacing_fanout drawn_negatives", 1, 2**16),
    ("ahead", 0, 2**13),
    # Positions in larger random arrays do not fit 64 bits.
    ("drawn", 0, 2**40),
    # They are started all at once.
    ("threads", 1, 2**13),
)
RANGES: Mapping[str, Range] = MappingProxyType(
    {name: Range(low, high) for names, low, high in _RANGES for name in names.split()}
)
"""Range of each number by its name: 'split' for vertices of a split, 'drawn' for vertices, edges, features and classes of a generated
graph, 'bytes' for a budget or a length."""


def require_integer(value: object, name: str, *, where: str) -> None:
    """Refuse an argument (``where``) that is not an integer in the range of ``name``."""
    if value not in RANGES[name]:
        raise InputError(
            f"{name} is out of range: {shown(value)}, expected {RANGES[name]} (in {where})",
            hint=f"Pass {RANGES[name]}.",
        )
