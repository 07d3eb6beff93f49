r"""Moments: mean and spread of the values, so that variances do not cancel.

The state is the sum of squared deviations :math:`d = \sum_e (v_e - m)^2`, the mean :math:`m`, and the number :math:`n` of
edges. Two states become :math:`n = n_1 + n_2`, :math:`m = m_1 + (m_2 - m_1) n_2 / n` and
:math:`d = d_1 + d_2 + (m_2 - m_1)^2 n_1 n_2 / n`. The mean of squares less the square of the mean would lose all digits
of values that are large beside their spread.

References:
    Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.edge.reductions.record import Part, Read, Reduction, beside
from sagann.kernels.gather.naive import gather_mean, gather_sum

if TYPE_CHECKING:
    from sagann.kernels.edge.builder import Builder


def _reduce(topology: Topology, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    (value,) = values
    mean = gather_mean(topology, value)
    deviation = value - mean.index_select(0, topology.edge_dst())
    return gather_sum(topology, deviation.square()), mean, topology.in_degrees().to(value.dtype)


def _merge(into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    (spread, mean, count), (more_spread, more_mean, more_count) = into, part
    together = (count + more_count).clamp(min=1)
    share, distance = beside(more_count / together, mean), more_mean - mean
    spread.add_(more_spread + distance.square() * share * beside(count, mean))
    mean.add_(distance * share)
    count.add_(more_count)


def _seeds(b: Builder, values: Sequence[str], reads: Mapping[str, str]) -> dict[str, str]:
    (value,) = values
    return {value: b.op("mul", reads["grad"], b.op("sub", value, reads["mean"]))}


MOMENTS = Reduction(
    name="moments",
    state=(Part(), Part(), Part(of="row")),
    registers=3,
    reads=(Read(), Read(name="mean")),
    seeds=_seeds,
    reduce=_reduce,
    merge=_merge,
)
