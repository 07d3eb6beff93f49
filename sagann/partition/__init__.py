"""Orders of a graph's vertices, by which ranges of them have few edges to one another; ranges, and a worker's part of a graph.

Pure algorithms over a Topology.
"""

from sagann.partition.halo import Part, part_of
from sagann.partition.orders import DEFAULT_SCORE, VERTEX_ORDERS, VertexOrder, vertex_order
from sagann.partition.vertex_ranges import RANGE_POLICIES, RangePolicy, vertex_ranges

__all__ = [
    "DEFAULT_SCORE",
    "RANGE_POLICIES",
    "VERTEX_ORDERS",
    "Part",
    "RangePolicy",
    "VertexOrder",
    "part_of",
    "vertex_order",
    "vertex_ranges",
]
