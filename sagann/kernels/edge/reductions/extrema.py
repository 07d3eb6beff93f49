r"""Extrema: the largest or smallest row, feature by feature, and the first edge that attains it.

Of two states the better value :math:`x` stays; NaN is better than numbers, and among equals the lower id of an edge wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.edge.reductions.record import Part, Read, Reduction
from sagann.kernels.gather.naive import gather_extremum

if TYPE_CHECKING:
    from sagann.kernels.edge.builder import Builder


def _merge(largest: bool, into: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    (best, edge), (value, where) = into, part
    beyond = value > best if largest else value < best
    equal = value == best
    if value.is_floating_point():
        isnan, known_nan = value.isnan(), best.isnan()
        beyond |= isnan & ~known_nan
        equal |= isnan & known_nan
    taken = (where >= 0) & ((edge < 0) | beyond | (equal & (where < edge)))
    best.copy_(torch.where(taken, value, best))
    edge.copy_(torch.where(taken, where, edge))


def _seeds(b: Builder, values: Sequence[str], reads: Mapping[str, str]) -> dict[str, str]:
    (value,) = values
    here = b.op("eq", reads["argument"], b.op("edge_id", dtype=torch.int64))
    return {value: b.op("where", here, reads["grad"], b.full(0, b.shape(value), b.dtype(value)))}


def _extremum(name: str) -> Reduction:
    def reduce(topology: Topology, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return gather_extremum(topology, values[0], name)

    return Reduction(
        name=name,
        state=(Part(), Part(neutral=-1, is_edge=True)),
        registers=2,
        reads=(Read(), Read(name="argument", is_edge=True)),
        seeds=_seeds,
        reduce=reduce,
        merge=partial(_merge, name == "max"),
    )


MAX, MIN = _extremum("max"), _extremum("min")
