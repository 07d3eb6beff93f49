"""Sampled: the blocks of one mini-batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sagann.graph.topology import Topology
from sagann.kernels.edge.cpu.run import walk_of
from sagann.sampling.links import Links


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sampled:
    """The blocks that a model walks for some seeds: ``model(sampled.blocks, features[sampled.src_ids])`` gives a row for each seed.

    The sources of a block are the destinations of the block before it. The first of them are its own destinations.
    """

    blocks: tuple[Topology, ...]
    """A topology per hop, in the order in which a model walks them: the hop farthest from the seeds is the first. Edge data
    are the rows of the graph's; ``edge_ids`` are the edges' ids in the graph."""
    src_ids: Tensor
    "int64 [blocks[0].num_src]: ids in the graph of the sources of the first block."
    seeds: Tensor
    "int64 [blocks[-1].num_dst]: ids in the graph of the destinations of the last block."
    links: Links | None = None
    "The links whose ends the seeds are; None for seeds of another kind."

    @property
    def num_edges(self) -> int:
        """Number of edges in all blocks."""
        return sum(block.num_edges for block in self.blocks)

    def prepare(self) -> Sampled:
        """Make what a training step on the processor needs of the blocks; returns the same object.

        These are the out-edges, which the backward pass reads, and the division of both passes into work items. A thread
        that samples ahead calls this, and the training step does not wait for it. It does not change any result.
        """
        for block in self.blocks:
            block.csr(parallel=False)
            for at in ("dst", "src"):
                walk_of(block, at)
        return self
