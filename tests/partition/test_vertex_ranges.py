import pytest
import torch

from sagann.errors import InputError
from sagann.graph import Topology
from sagann.partition import BALANCES, vertex_ranges
from tests.graphs import odd_topologies, random_topology

TOPOLOGIES = odd_topologies()


def edges_of(topology: Topology, bounds: tuple[int, ...]) -> list[int]:
    return topology.indptr[list(bounds)].diff().tolist()


@pytest.mark.parametrize("num_ranges", [2, 8])
def test_ranges_of_equal_edges_differ_by_the_largest_in_degree_at_most(num_ranges: int) -> None:
    topology = random_topology(500, 6000)
    share = topology.num_edges / num_ranges
    most = int(topology.in_degrees().max())
    found = edges_of(topology, vertex_ranges(topology.indptr, num_ranges))
    assert all(abs(edges - share) <= most for edges in found)


def test_a_hub_leaves_ranges_empty() -> None:
    topology = TOPOLOGIES["one hub"]
    bounds = vertex_ranges(topology.indptr, 3)
    assert sorted(edges_of(topology, bounds)) == [0, 0, topology.num_edges]


def test_without_edges_vertices_are_divided() -> None:
    assert vertex_ranges(torch.zeros(5, dtype=torch.int64), 2) == (0, 2, 4)


def test_workers_that_are_balanced_by_cost_begin_with_equal_edges() -> None:
    indptr = torch.tensor([0, 4, 5, 6, 8])
    assert BALANCES == ("edges", "vertices", "cost")
    assert vertex_ranges(indptr, 2, "cost") == vertex_ranges(indptr, 2, "edges") == (0, 1, 4)
    assert vertex_ranges(indptr, 2, "vertices") == (0, 2, 4)
    with pytest.raises(InputError, match="unknown balance: 'time', expected one of edges, vertices, cost"):
        vertex_ranges(indptr, 2, "time")
