"""Accumulators: one file for each family, with its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sagann.kernels.accumulators.extrema import MAX, MIN
from sagann.kernels.accumulators.gathering import SEPARATOR, Gathering
from sagann.kernels.accumulators.moments import STD, VAR
from sagann.kernels.accumulators.product import MUL
from sagann.kernels.accumulators.record import Accumulator, Counts
from sagann.kernels.accumulators.softmax import SOFTMAX
from sagann.kernels.accumulators.sums import CONCAT, MEAN, SUM

__all__ = ["ACCUMULATORS", "SEPARATOR", "SUM", "Accumulator", "Counts", "Gathering", "gathering"]

ACCUMULATORS: Mapping[str, Accumulator] = MappingProxyType(
    {record.name: record for record in (SUM, MEAN, MAX, MIN, VAR, STD, MUL, SOFTMAX, CONCAT)}
)
"The accumulators that a layer may choose, by name."


def gathering(names: str | Sequence[str], max_degree: int = 0) -> Gathering:
    """The gather by the accumulators of these names.

    Args:
        names: one, several, or several joined by :data:`SEPARATOR`.
        max_degree: the width of concat.
    Raises:
        ValueError: there is no such accumulator.
    """
    records = []
    for name in names.split(SEPARATOR) if isinstance(names, str) else names:
        if name not in ACCUMULATORS:
            raise ValueError(f"There is no accumulator '{name}'; choose one of {', '.join(ACCUMULATORS)}.")
        records.append(ACCUMULATORS[name])
    return Gathering(accumulators=tuple(records), max_degree=max_degree)
