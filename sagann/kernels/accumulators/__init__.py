"""Accumulators: how a layer gathers its messages."""

from sagann.kernels.accumulators.gathering import Gathering, Names, gathering
from sagann.kernels.accumulators.records import ACCUMULATORS, MOMENTS, SUM, Accumulator, Counts

__all__ = ["ACCUMULATORS", "MOMENTS", "SUM", "Accumulator", "Counts", "Gathering", "Names", "gathering"]
