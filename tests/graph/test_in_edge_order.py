"""However a graph comes about, the in-edges of every vertex ascend by source: ties of extrema depend on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import scipy.sparse as sp
import torch

from sagann.graph import Graph, Topology, add_inverse_edges, demo_graph, rmat_graph, symmetrise
from sagann.interop import from_scipy

N, NUM_EDGES = 60, 900
ENDS = torch.randint(N, (2, NUM_EDGES), generator=torch.Generator().manual_seed(3))


def drawn() -> Graph:
    data = {"type": torch.arange(NUM_EDGES) % 3}
    return Graph(topology=Topology.from_coo(src=ENDS[0], dst=ENDS[1], num_src=N, edge_data=data), num_edge_types=3)


BUILDERS: dict[str, Callable[[], Graph]] = {
    "demo": demo_graph,
    "rmat": lambda: rmat_graph(N, NUM_EDGES, seed=0),
    "symmetrise": lambda: symmetrise(drawn()),
    "add_inverse_edges": lambda: add_inverse_edges(drawn()),
    "SciPy": lambda: from_scipy(sp.coo_matrix((torch.ones(NUM_EDGES), ENDS), shape=(N, N))),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_in_edges_ascend_by_source(name: str) -> None:
    topology = BUILDERS[name]().topology
    edges = list(zip(topology.edge_dst().tolist(), topology.indices.tolist(), strict=True))
    assert len(edges) > N
    assert edges == sorted(edges)
