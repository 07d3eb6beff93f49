"""Reductions: one file for each family, with its records."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sagann.kernels.edge.reductions.extrema import MAX, MIN
from sagann.kernels.edge.reductions.moments import MOMENTS
from sagann.kernels.edge.reductions.product import PRODUCT
from sagann.kernels.edge.reductions.record import Part, Read, Reduction, beside
from sagann.kernels.edge.reductions.softmax import SOFTMAX
from sagann.kernels.edge.reductions.sums import EDGE, SUM, TOTAL

__all__ = ["Part", "Read", "Reduction", "beside", "reduction"]

_RECORDS: Mapping[str, Reduction] = MappingProxyType(
    {record.name: record for record in (SUM, TOTAL, EDGE, MAX, MIN, SOFTMAX, MOMENTS, PRODUCT)}
)


def reduction(name: str) -> Reduction:
    """The record of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in _RECORDS:
        raise ValueError(f"There is no reduction '{name}'; choose one of {', '.join(_RECORDS)}.")
    return _RECORDS[name]
