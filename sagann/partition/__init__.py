"""Orders of a graph's vertices, and parts for workers: ranges of vertices, a worker's part of a graph, and parts that are balanced by a
cost model, which learns from measured epochs. Pure algorithms over a Topology."""

from sagann.partition.balance import BALANCES, Balance, balanced_bounds, vertex_ranges
from sagann.partition.cost_features import (
    ACCESS_BYTES,
    FEATURES,
    CostFeatures,
    count_cost_features,
    widths_to_count,
)
from sagann.partition.cost_model import CostModel, LearnedKind, Measurement
from sagann.partition.halo import Part, numbered_part, part_of
from sagann.partition.orders import DEFAULT_SCORE, VERTEX_ORDERS, VertexOrder, vertex_order
from sagann.partition.repartition import MoveCosts, RecentEpochs, Repartition, decide_repartition

__all__ = [
    "ACCESS_BYTES",
    "BALANCES",
    "DEFAULT_SCORE",
    "FEATURES",
    "VERTEX_ORDERS",
    "Balance",
    "CostFeatures",
    "CostModel",
    "LearnedKind",
    "Measurement",
    "MoveCosts",
    "Part",
    "RecentEpochs",
    "Repartition",
    "VertexOrder",
    "balanced_bounds",
    "count_cost_features",
    "decide_repartition",
    "numbered_part",
    "part_of",
    "vertex_order",
    "vertex_ranges",
    "widths_to_count",
]
