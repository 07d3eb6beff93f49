"""Graphs that kernels are timed on."""

from __future__ import annotations

import torch

from sagann.graph import Topology


def topology_of(kind: str, num_vertices: int, num_edges: int) -> Topology:
    """A uniform graph, or one whose degrees fall off as a power law."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.rand(2, num_edges, generator=generator)
    if kind == "power law":
        # Density of an id x falls as x^(-2/3): degrees follow a power law.
        ends = ends**3
    src, dst = (ends * num_vertices).long().clamp(max=num_vertices - 1)
    # Which vertices are the hubs says nothing about where they lie.
    order = torch.randperm(num_vertices, generator=generator)
    return Topology.from_coo(src=order[src], dst=order[dst], num_src=num_vertices)
