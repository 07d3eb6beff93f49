"""Orders of a graph's vertices, by which intervals of them have few edges to one another. Pure algorithms over a Topology."""

from sagann.partition.orders import DEFAULT_SCORE, VERTEX_ORDERS, VertexOrder, vertex_order

__all__ = ["DEFAULT_SCORE", "VERTEX_ORDERS", "VertexOrder", "vertex_order"]
