"""Counters of a tiered store: rows and bytes that each tier has given. They are always on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import add, sub
from typing import Any, Self


class _Sums:
    """A record of numbers that is added and subtracted field by field."""

    def __add__(self, other: Self) -> Self:
        return self._each(add, other)

    def __sub__(self, earlier: Self) -> Self:
        """What has come since an earlier look."""
        return self._each(sub, earlier)

    def _each(self, function: Callable[[Any, Any], Any], other: Self) -> Self:
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        return type(self)(**{name: function(getattr(self, name), getattr(other, name)) for name in names})


@dataclass(frozen=True, kw_only=True, slots=True)
class TierCounts(_Sums):
    """What one tier has given."""

    rows: int = 0
    num_bytes: int = 0

    @classmethod
    def of(cls, rows: int, row_bytes: int) -> TierCounts:
        """Rows of equal size."""
        return cls(rows=rows, num_bytes=rows * row_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic(_Sums):
    """What a tiered store has given since it was made, by tier.

    Example:
        >>> traffic = Traffic(hot=TierCounts(rows=3, num_bytes=96), cold=TierCounts(rows=1, num_bytes=32))
        >>> traffic.hit_rate, traffic.rows
        (0.75, 4)
        >>> (traffic - Traffic(hot=TierCounts(rows=1, num_bytes=32))).hot.rows
        2
    """

    hot: TierCounts = TierCounts()
    "Rows that were hits: copied from the hot tier."
    cold: TierCounts = TierCounts()
    "Rows that were read from the cold tier. Rows that the hot tier begins with are not among them."
    cold_reads: int = 0
    "Number of positioned reads of a file; rows that lie close together share a read."
    cold_read_bytes: int = 0
    "Number of bytes of these reads, with the gaps between rows that share a read."

    @property
    def rows(self) -> int:
        return self.hot.rows + self.cold.rows

    @property
    def hit_rate(self) -> float:
        """Share of the rows that were hits, from 0 to 1; 0 before the first row."""
        return self.hot.rows / self.rows if self.rows else 0.0

    def to_json(self) -> dict[str, int]:
        """The counts by name, as a line of metrics.jsonl has them."""
        return {
            "hot_rows": self.hot.rows,
            "hot_bytes": self.hot.num_bytes,
            "cold_rows": self.cold.rows,
            "cold_bytes": self.cold.num_bytes,
            "cold_reads": self.cold_reads,
            "cold_read_bytes": self.cold_read_bytes,
        }
