"""Chunks keep the edges of a hop."""

from __future__ import annotations

from pathlib import Path

from sagann.plan import equal_vertices
from sagann.plan.grid import ChunkGrid
from sagann.plan.hops import CSC
from sagann.plan.selection import ALWAYS
from sagann.plan.steps import Block
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.host import RamHost
from sagann.runtime.blocks.spill import DiskHost
from tests.graphs import labelled_graph, random_topology


def test_a_chunk_that_is_viewed_stays_as_it_is() -> None:
    grid = ChunkGrid(labelled_graph().topology, (0, 20, 53))
    chunks = Chunks(grid, RamHost(), 0, ALWAYS)
    expected = {(chunk.src, chunk.dst): chunk.topology.indices.tolist() for chunk in grid.chunks()}
    for (src, dst), indices in expected.items():
        block = Block("edges", CSC, src, dst, 0)
        for read in (chunks.view, chunks.view, chunks.load, chunks.load):
            assert read(block).indices.tolist() == indices


def test_many_chunks_on_disk(tmp_path: Path) -> None:
    topology = random_topology(256, 8000)
    grid = ChunkGrid(topology, equal_vertices(256, 32))
    chunks = Chunks(grid, DiskHost(tmp_path), 0)
    assert len(chunks.size.edges) > 900
    first = 0
    for chunk in grid.chunks():
        read = chunks.load(Block("edges", CSC, chunk.src, chunk.dst, 0))
        assert read.indices.tolist() == chunk.topology.indices.tolist()
        assert chunks.first_edge[chunk.src, chunk.dst] == first
        first += chunk.topology.num_edges
