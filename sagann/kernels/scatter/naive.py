"""Scatter in plain PyTorch: one row per edge is materialised.

Its readers are :class:`sagann.saga.NaiveEngine`, which every other engine is held to, and a probe of the report. Kernels
have no scatter of their own: passes over the edges load rows where they lie.

References:
    Ma et al., NGra, 2018, Sec. 2.1 and 3.3 (the Scatter stage).
"""

from __future__ import annotations

from torch import Tensor

from sagann.graph.topology import Topology


def scatter_src(topology: Topology, x: Tensor) -> Tensor:
    """Copy each edge's source row: [num_src, ...] -> [num_edges, ...]."""
    # int64 ids, because PyTorch's gradient of index_select runs in parallel for these alone.
    return x.index_select(0, topology.indices.long())


def scatter_dst(topology: Topology, x: Tensor) -> Tensor:
    """Copy each edge's destination row: [num_src or num_dst, ...] -> [num_edges, ...]."""
    return x.index_select(0, topology.edge_dst().long())
