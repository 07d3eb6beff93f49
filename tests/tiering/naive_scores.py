"""The scores as they are written, with a dense matrix of the edges."""

from __future__ import annotations

import torch
from torch import Tensor

from sagann.graph import Topology


def edge_counts(topology: Topology) -> Tensor:
    """float64 [num_src, num_dst]: number of edges from each source to each destination."""
    counts = torch.zeros(topology.num_src, topology.num_dst, dtype=torch.float64)
    for src, dst in zip(topology.indices.tolist(), topology.edge_dst().tolist(), strict=True):
        counts[src, dst] += 1
    return counts


def pagerank(topology: Topology, first: Tensor, damping: float, iterations: int) -> Tensor:
    """Reverse PageRank after some iterations, from some first scores."""
    counts, num_vertices = edge_counts(topology), topology.num_src
    shares = counts / counts.sum(0).clamp(min=1)
    score = first
    for _ in range(iterations):
        score = (1 - damping) / num_vertices + damping * (shares @ score)
    return score


def reverse_pagerank(topology: Topology, damping: float = 0.85) -> Tensor:
    """The fixed point: (I - d S) s = (1 - d) / N."""
    counts, num_vertices = edge_counts(topology), topology.num_src
    shares = counts / counts.sum(0).clamp(min=1)
    right = torch.full((num_vertices,), (1 - damping) / num_vertices, dtype=torch.float64)
    return torch.linalg.solve(torch.eye(num_vertices, dtype=torch.float64) - damping * shares, right)


def weighted_reverse_pagerank(
    topology: Topology, labelled: Tensor, damping: float = 0.85, iterations: int = 5
) -> Tensor:
    """Algorithm 1 of Data Tiering."""
    num_vertices = topology.num_src
    weight = num_vertices / int(labelled.sum())
    first = torch.full((num_vertices,), 1 / num_vertices, dtype=torch.float64)
    return pagerank(topology, torch.where(labelled, first * weight, first), damping, iterations)


def inclusion_probability(topology: Topology, labelled: Tensor, fanouts: list[int], batch_size: int) -> Tensor:
    """The product over out-edges, one factor after the other."""
    edges = list(zip(topology.indices.tolist(), topology.edge_dst().tolist(), strict=True))
    in_degrees = topology.in_degrees().tolist()
    chosen = min(1.0, batch_size / int(labelled.sum()))
    present = [chosen if is_labelled else 0.0 for is_labelled in labelled.tolist()]
    for fanout in fanouts:
        absent = [1 - p for p in present]
        for src, dst in edges:
            absent[src] *= 1 - present[dst] * (1 if fanout == -1 else min(1, fanout / in_degrees[dst]))
        present = [1 - p for p in absent]
    return torch.tensor(present, dtype=torch.float64)
