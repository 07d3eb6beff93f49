"""A graph on which workers or trainers are balanced."""

from __future__ import annotations

import torch

from sagann.graph import Graph, Topology, rmat_edges


def power_law(num_vertices: int, num_edges: int, num_features: int) -> Graph:
    """An R-MAT graph whose first vertices have most of the edges."""
    src, dst = rmat_edges(num_vertices, num_edges, seed=0, scramble=False)
    generator = torch.Generator().manual_seed(0)
    return Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=num_vertices),
        features=torch.randn(num_vertices, num_features, generator=generator),
        labels=torch.randint(10, (num_vertices,), generator=generator),
        num_classes=10,
        splits={"train": torch.arange(num_vertices) % 2 == 0},
    )
