"""Sums: of a group's edges, of all edges, and of none, where every edge keeps its row."""

from __future__ import annotations

from sagann.kernels.edge.reductions.record import Part, Reduction, add
from sagann.kernels.gather.naive import gather_sum

SUM = Reduction(
    name="sum",
    state=(Part(),),
    reduce=lambda topology, values: (gather_sum(topology, values[0]),),
    merge=add,
)
TOTAL = Reduction(
    name="total",
    state=(Part(),),
    rows="item",
    reduce=lambda topology, values: (values[0].sum(0),),
    merge=add,
)


def _not_merged(*_: object) -> None:
    raise AssertionError("rows of edges are no state")


EDGE = Reduction(
    name="edge",
    state=(Part(),),
    rows="edge",
    registers=0,
    reduce=lambda topology, values: (values[0],),
    merge=_not_merged,
)
