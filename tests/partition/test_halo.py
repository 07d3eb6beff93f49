"""Parts against a brute force: sets of vertices and lists of edges."""

import pytest
import torch

from sagann.graph import Topology
from sagann.partition import Part, part_of, vertex_ranges
from tests.graphs import odd_topologies, random_topology

TOPOLOGIES = {**odd_topologies(), "large": random_topology(300, 2000)}


def edges_of(topology: Topology) -> list[tuple[int, int]]:
    return list(zip(topology.indices.tolist(), topology.edge_dst().tolist(), strict=True))


def parts_of(topology: Topology, num_parts: int, balance: str) -> list[Part]:
    bounds = vertex_ranges(topology.indptr, num_parts, balance)
    return [part_of(topology, bounds, rank) for rank in range(num_parts)]


@pytest.mark.parametrize("balance", ["edges", "vertices"])
@pytest.mark.parametrize("num_parts", [1, 3, 60])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_parts_equal_a_brute_force(name: str, num_parts: int, balance: str) -> None:
    topology = TOPOLOGIES[name]
    edges, found = edges_of(topology), []
    parts = parts_of(topology, num_parts, balance)
    for part in parts:
        own = range(part.vertices.start, part.vertices.stop)
        inside = [(src, dst) for src, dst in edges if dst in own]
        assert part.halo.tolist() == sorted({src for src, _ in inside} - set(own))
        ids = [*own, *part.halo.tolist()]
        local = Topology(indptr=part.indptr, indices=part.indices, num_src=part.num_src)
        assert [(ids[src], ids[dst]) for src, dst in edges_of(local)] == inside == edges[part.edges]
        assert torch.equal(part.sources(), topology.indices[part.edges])
        found += inside
    assert found == edges


@pytest.mark.parametrize("num_parts", [2, 60])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_is_sent_is_what_is_needed(name: str, num_parts: int) -> None:
    topology = TOPOLOGIES[name]
    rows = torch.arange(topology.num_dst) * 10
    parts = parts_of(topology, num_parts, "edges")
    wanted = [[each.halo[place] for place in each.halo_by_owner()] for each in parts]
    for receiver in parts:
        received = []
        for owner in parts:
            sent = [wanted[other.rank][owner.rank] - owner.vertices.start for other in parts]
            assert len(sent[owner.rank]) == 0
            received.append(rows[owner.vertices][sent[receiver.rank]])
        assert torch.equal(torch.cat(received), rows[receiver.halo])


def test_only_the_part_is_read_of_the_edges() -> None:
    topology = random_topology(300, 2000)
    bounds = vertex_ranges(topology.indptr, 3)
    expected = part_of(topology, bounds, 1)
    poisoned = topology.indices.clone()
    poisoned[: expected.edges.start] = -(2**31)
    poisoned[expected.edges.stop :] = -(2**31)
    read = Topology(indptr=topology.indptr, indices=poisoned, num_src=300, validate=False)
    assert torch.equal(part_of(read, bounds, 1).indices, expected.indices)
