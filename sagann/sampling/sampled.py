"""Sampled: the blocks of one mini-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sagann.graph.topology import Topology, for_training_as_well
from sagann.graph.transform import keep_edges
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

    def with_links(self, links: Links, *, keep_positives: bool = False, undirected: bool = True) -> Sampled:
        """The blocks for a batch of links whose ends are the seeds, without the edges that would give the positive ones away.

        These are all edges, of any type, that join the ends of a positive link; with ``undirected=False`` only those in its direction. Other edges stay
        as they were picked, so an end may have fewer than its fanout. With ``keep_positives`` all edges stay.
        """
        blocks = self.blocks
        if not keep_positives:
            ends = links.src[: links.num_positive], links.dst[: links.num_positive]
            with for_training_as_well():
                blocks = tuple(_without(block, *ends, len(links.seeds), undirected=undirected) for block in blocks)
        return replace(self, blocks=blocks, links=links)

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


def _without(block: Topology, src: Tensor, dst: Tensor, num_seeds: int, *, undirected: bool) -> Topology:
    """A block without the edges between pairs of seeds, which are its first vertices: so every vertex that it numbers stays."""
    src, dst = src.to(block.indptr.device), dst.to(block.indptr.device)
    pairs = dst * num_seeds + src
    if undirected:
        pairs = torch.cat([pairs, src * num_seeds + dst])
    of_seeds = block.indptr[: num_seeds + 1]
    seeds = torch.arange(num_seeds, device=of_seeds.device)
    sources = block.indices[: int(of_seeds[-1])].long()
    edges = torch.repeat_interleave(seeds, of_seeds.diff(), output_size=len(sources)) * num_seeds + sources
    keep = torch.ones(block.num_edges, dtype=torch.bool, device=of_seeds.device)
    keep[: len(sources)] = (sources >= num_seeds) | ~torch.isin(edges, pairs)
    kept = keep_edges(block, keep, with_ids=True)
    assert block.edge_ids is not None
    assert kept.edge_ids is not None
    kept.edge_ids = block.edge_ids[kept.edge_ids]
    return kept
