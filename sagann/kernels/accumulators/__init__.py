"""Accumulators: one file for each family, with its records."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sagann.kernels.accumulators.extrema import MAX, MIN
from sagann.kernels.accumulators.gathering import Gathering
from sagann.kernels.accumulators.moments import STD, VAR
from sagann.kernels.accumulators.product import MUL
from sagann.kernels.accumulators.record import Accumulator, Counts
from sagann.kernels.accumulators.softmax import SOFTMAX
from sagann.kernels.accumulators.sums import CONCAT, MEAN, SUM

__all__ = ["ACCUMULATORS", "SUM", "Accumulator", "Counts", "Gathering", "gathering"]

ACCUMULATORS: Mapping[str, Accumulator] = MappingProxyType(
    {record.name: record for record in (SUM, MEAN, MAX, MIN, VAR, STD, MUL, SOFTMAX, CONCAT)}
)
"The accumulators that a layer may choose, by name."


def gathering(name: str, max_degree: int = 0) -> Gathering:
    """The gather by the accumulator of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in ACCUMULATORS:
        raise ValueError(f"There is no accumulator '{name}'; choose one of {', '.join(ACCUMULATORS)}.")
    return Gathering(accumulator=ACCUMULATORS[name], max_degree=max_degree)
