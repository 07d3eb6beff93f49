"""Sizes of a hop's chunks are known without cutting, and counted once."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from sagann.plan import ChunkGrid, equal_vertices
from sagann.plan.hops import EdgesOfType, hop_size
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.host import RamHost
from tests.graphs import odd_topologies, random_topology

TOPOLOGIES = odd_topologies(types=2)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_sizes_are_known_without_cutting(name: str) -> None:
    topology = TOPOLOGIES[name]
    bounds = equal_vertices(topology.num_dst, 3)
    for hop in (topology, EdgesOfType(topology=topology, data="type", type=1)):
        assert asdict(hop_size(hop, bounds)) == asdict(Chunks(ChunkGrid(hop, bounds), RamHost(), 0).size)


def test_a_grid_is_counted_once_and_again_when_types_change() -> None:
    topology = random_topology(20, 60)
    bounds = equal_vertices(20, 3)
    assert hop_size(topology, bounds) is hop_size(topology, list(bounds))
    typed = TOPOLOGIES[next(name for name, each in TOPOLOGIES.items() if each.num_edges > 4)]
    hop, bounds = EdgesOfType(topology=typed, data="type", type=1), equal_vertices(typed.num_dst, 2)
    before = hop_size(hop, bounds)
    assert hop_size(hop, bounds) is before
    typed.edge_data["type"].fill_(1)
    assert sum(hop_size(hop, bounds).edges.values()) == typed.num_edges
