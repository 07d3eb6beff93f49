"""Intervals and the grid of edge chunks."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st

from sagann.errors import InputError
from sagann.plan import ChunkGrid, equal_vertices, equal_weights
from sagann.plan.hops import EdgesOfType, hop_size
from sagann.plan.intervals import PartIntervals
from sagann.plan.steps import ALL, uncut_ends
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.host import RamHost
from tests.graphs import block_of, odd_topologies, random_topology

TOPOLOGIES = odd_topologies(types=3)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("policy", ["vertices", "edges"])
@pytest.mark.parametrize("most_edges", [0, 5, 1 << 20])
@pytest.mark.parametrize("uncut", [(False, False), (True, False), (False, True)])
def test_the_chunks_are_the_graph(
    name: str, count: int, policy: str, most_edges: int, uncut: tuple[bool, bool]
) -> None:
    topology = TOPOLOGIES[name]
    bounds = (
        equal_vertices(topology.num_dst, count)
        if policy == "vertices"
        else equal_weights(topology.indptr, count, vertex=0, edge=1)
    )
    firsts = {**dict(enumerate(bounds)), ALL: 0}
    rows = PartIntervals.of_graph(bounds).rows
    dst_of = topology.edge_dst().long()
    seen: list[int] = []
    numbers: list[int] = []
    for chunk in ChunkGrid(topology, bounds, most_edges=most_edges, uncut=uncut).chunks():
        part = chunk.topology
        part.validate()
        assert part.num_edges > 0
        assert uncut_ends(chunk.src, chunk.dst) == uncut
        ids = chunk.edge_ids
        assert torch.equal(part.indices.long() + firsts[chunk.src], topology.indices[ids].long())
        assert torch.equal(part.edge_dst().long() + firsts[chunk.dst], dst_of[ids])
        assert int(part.indices.max()) < rows[chunk.src]
        for data, whole in topology.edge_data.items():
            assert torch.equal(part.edge_data[data], whole[ids])
        # Edges of one destination keep their order.
        assert all(first < last or dst_of[first] != dst_of[last] for first, last in pairwise(ids.tolist()))
        seen += ids.tolist()
        numbers += range(chunk.first_edge, chunk.first_edge + part.num_edges)
    assert sorted(seen) == list(range(topology.num_edges))
    assert numbers == list(range(topology.num_edges))


def test_impossible_cuts_are_refused() -> None:
    topology = random_topology(20, 60)
    for bounds in [(0, 10), (0, 12, 5, 20), (1, 20), (0,), ()]:
        with pytest.raises(InputError, match="do not cut the vertices"):
            ChunkGrid(topology, bounds)
    with pytest.raises(
        InputError, match="an interval has destinations and other sources: 20 sources, 5 destinations"
    ):
        ChunkGrid(block_of(topology, 5), (0, 4, 20))


def test_destinations_may_be_the_first_sources_alone() -> None:
    block = block_of(random_topology(20, 60), 5)
    bounds = (0, 3, 5, 11, 20)
    grid = ChunkGrid(block, bounds)
    assert (grid.num_intervals, grid.num_destinations) == (4, 2)
    ids = torch.cat([chunk.edge_ids for chunk in grid.chunks()])
    assert sorted(ids.tolist()) == list(range(block.num_edges))
    for chunk in grid.chunks():
        sources = chunk.topology.indices.long() + bounds[chunk.src]
        assert torch.equal(sources, block.indices.long()[chunk.edge_ids])
    assert hop_size(block, bounds).edges == {
        (chunk.src, chunk.dst): chunk.topology.num_edges for chunk in grid.chunks()
    }


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_sizes_are_known_without_cutting(name: str) -> None:
    topology = TOPOLOGIES[name]
    bounds = equal_vertices(topology.num_dst, 3)
    for hop in (topology, EdgesOfType(topology=topology, data="type", type=1)):
        assert asdict(hop_size(hop, bounds)) == asdict(
            Chunks(hop, PartIntervals.of_graph(bounds), RamHost(), 0).size
        )


def test_a_grid_is_counted_again_when_types_change() -> None:
    typed = random_topology(20, 60, types=2)
    hop, bounds = EdgesOfType(topology=typed, data="type", type=1), equal_vertices(20, 2)
    assert sum(hop_size(hop, bounds).edges.values()) < typed.num_edges
    typed.edge_data["type"].fill_(1)
    assert sum(hop_size(hop, bounds).edges.values()) == typed.num_edges


@settings(max_examples=50, deadline=None)
@given(degrees=st.lists(st.integers(0, 30), min_size=1, max_size=40), count=st.integers(1, 9))
def test_intervals_of_equal_edges(degrees: list[int], count: int) -> None:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    bounds = equal_weights(indptr, count, vertex=0, edge=1)
    assert len(bounds) == count + 1
    assert list(bounds) == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, len(degrees))
    # None has more than its share but for one vertex.
    most = max(int(indptr[last] - indptr[first]) for first, last in pairwise(bounds))
    assert most <= sum(degrees) / count + max(degrees)


def test_no_interval_is_no_cut() -> None:
    for cut in (lambda: equal_vertices(20, 0), lambda: equal_weights(torch.tensor([0, 1]), 0, vertex=0, edge=1)):
        with pytest.raises(InputError, match="vertices cannot be cut into that few intervals: 0, at least 1"):
            cut()
