"""Small graphs that every kernel and layer is tried on: the cases where off-by-one errors live."""

from __future__ import annotations

from functools import cache

import torch

from sagann.graph import Graph, Topology


def topology_of(edges: list[tuple[int, int]], num_vertices: int, *, types: int = 0) -> Topology:
    """A topology from (src, dst) pairs; weights drawn from a fixed seed, and types in turn."""
    return _topology_of(torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T, num_vertices, types=types)


def random_topology(num_vertices: int, num_edges: int, *, seed: int = 0, types: int = 0) -> Topology:
    """Edges drawn with a skew: low ids are hubs."""
    generator = torch.Generator().manual_seed(seed)
    ends = (torch.rand(2, num_edges, generator=generator) ** 3 * num_vertices).long()
    # One self-loop at most per vertex: PyG's layers merge several of them.
    return _topology_of(ends[:, ends[0] != ends[1]], num_vertices, types=types)


def _topology_of(ends: torch.Tensor, num_vertices: int, *, types: int) -> Topology:
    src, dst = ends
    data = {"weight": torch.rand(len(src), generator=torch.Generator().manual_seed(0)) + 0.5}
    if types:
        data["type"] = torch.arange(len(src)) % types
    return Topology.from_coo(src=src, dst=dst, num_src=num_vertices, edge_data=data)


def odd_topologies(*, types: int = 0) -> dict[str, Topology]:
    """By name: no edges, isolated vertices, self-loops, multi-edges, one hub, a skewed one of odd size."""
    return dict(_odd_topologies(types))


@cache
def _odd_topologies(types: int) -> dict[str, Topology]:
    cases = {
        "no edges": ([], 4),
        "isolated vertices": ([(0, 3), (3, 0)], 6),
        "self-loops": ([(0, 0), (1, 1), (2, 1)], 3),
        "multi-edges": ([(0, 1), (0, 1), (1, 0), (0, 1)], 2),
        "one hub": ([(v, 0) for v in range(1, 37)], 37),
    }
    topologies = {name: topology_of(edges, n, types=types) for name, (edges, n) in cases.items()}
    topologies["skewed"] = random_topology(53, 401, types=types)
    return topologies


def skewed(*, types: int = 0) -> Topology:
    """The odd topology that has a bit of everything."""
    return odd_topologies(types=types)["skewed"]


def rows(topology: Topology, dim: int = 4, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Drawn rows of the sources, the same every time."""
    return torch.randn(topology.num_src, dim, dtype=dtype, generator=torch.Generator().manual_seed(0))


def edge_index(topology: Topology) -> torch.Tensor:
    """PyG's form of the edges, in CSC order: int64 [2, num_edges]."""
    return torch.stack([topology.indices.long(), topology.edge_dst().long()])


def block_of(topology: Topology, num_dst: int) -> Topology:
    """The bipartite part of a topology that ends at its first ``num_dst`` vertices."""
    indptr = topology.indptr[: num_dst + 1]
    last = int(indptr[-1])
    data = {name: rows[:last] for name, rows in topology.edge_data.items()}
    return Topology(indptr=indptr, indices=topology.indices[:last], num_src=topology.num_src, edge_data=data)


def labelled_graph(num_vertices: int = 53, num_edges: int = 401, *, seed: int = 0, types: int = 0) -> Graph:
    """A small graph with features, three classes and splits."""
    generator = torch.Generator().manual_seed(seed + 1)
    parts = torch.arange(num_vertices) % 3
    return Graph(
        topology=random_topology(num_vertices, num_edges, seed=seed, types=types),
        features=torch.randn(num_vertices, 8, generator=generator),
        labels=torch.randint(3, (num_vertices,), generator=generator),
        num_classes=3,
        splits={"train": parts == 0, "val": parts == 1, "test": parts == 2},
        num_edge_types=types,
    )
