"""Accumulators: one file for each family, with its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sagann.kernels.accumulators.extrema import MAX, MIN
from sagann.kernels.accumulators.gathering import MESSAGE_SEPARATOR, SEPARATOR, Gathering
from sagann.kernels.accumulators.moments import STD, VAR
from sagann.kernels.accumulators.product import MUL
from sagann.kernels.accumulators.record import Accumulator, Counts
from sagann.kernels.accumulators.softmax import SOFTMAX
from sagann.kernels.accumulators.sums import CONCAT, MEAN, SUM

__all__ = ["ACCUMULATORS", "SUM", "Accumulator", "Counts", "Gathering", "Names", "gathering"]

ACCUMULATORS: Mapping[str, Accumulator] = MappingProxyType(
    {record.name: record for record in (SUM, MEAN, MAX, MIN, VAR, STD, MUL, SOFTMAX, CONCAT)}
)
"The accumulators that a layer may choose, by name."


Names = str | Sequence[str]
"An accumulator of a message, or several."


def gathering(names: Names | Mapping[str, Names], max_degree: int = 0) -> Gathering:
    """The gather by the accumulators of these names.

    Args:
        names: those of one message (one name, several, or several joined by :data:`SEPARATOR`), or those of each message
            (a mapping, or one string joined by :data:`MESSAGE_SEPARATOR`).
        max_degree: the width of concat.
    Raises:
        ValueError: there is no such accumulator.
    """
    if isinstance(names, Mapping):
        messages = list(names.values())
    else:
        messages = list(names.split(MESSAGE_SEPARATOR)) if isinstance(names, str) else [names]
    return Gathering(messages=tuple(map(_records, messages)), max_degree=max_degree)


def _records(names: Names) -> tuple[Accumulator, ...]:
    several = names.split(SEPARATOR) if isinstance(names, str) else names
    if unknown := [name for name in several if name not in ACCUMULATORS]:
        raise ValueError(f"There is no accumulator '{unknown[0]}'; choose one of {', '.join(ACCUMULATORS)}.")
    return tuple(ACCUMULATORS[name] for name in several)
