"""Chunk counts: those of counting edge by edge."""

from __future__ import annotations

from bisect import bisect_right

import pytest
import torch

from sagann.graph.chunk_counts import chunk_counts
from tests.graphs import odd_topologies, random_topology

TOPOLOGIES = odd_topologies()


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("cuts", [(), (0, 1, 1)])
def test_every_edge_counts_once(name: str, cuts: tuple[int, ...]) -> None:
    topology = TOPOLOGIES[name]
    bounds = (0, *cuts, topology.num_dst)
    expected = torch.zeros(len(bounds) - 1, len(bounds) - 1, dtype=torch.int64)
    for src, dst in zip(topology.indices.tolist(), topology.edge_dst().tolist(), strict=True):
        expected[bisect_right(bounds, src) - 1, bisect_right(bounds, dst) - 1] += 1
    assert torch.equal(chunk_counts(topology, bounds), expected)


def test_threads_share_the_edges_of_a_larger_graph_and_many_intervals_are_counted() -> None:
    topology = random_topology(700, 80_000)
    counts = chunk_counts(topology, range(701))
    assert torch.equal(counts.sum(0), topology.in_degrees())
    assert torch.equal(counts.sum(1), topology.out_degrees())
    assert torch.equal(chunk_counts(topology, (0, 300, 700))[0, 1], counts[:300, 300:].sum())
