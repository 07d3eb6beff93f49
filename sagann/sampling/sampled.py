"""Sampled: the blocks of one mini-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
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

    def with_links(self, links: Links, *, keep_positives: bool = False, undirected: bool = True) -> Sampled:
        """The blocks for a batch of links whose ends are the seeds, without the edges that would give the positive ones away.

        These are all edges, of any type, that join the ends of a positive link; with ``undirected=False`` only those in its direction. Other edges stay
        as they were picked, so an end may have fewer than its fanout. With ``keep_positives`` all edges stay.
        """
        blocks = self.blocks
        if not keep_positives:
            src, dst = links.src[: links.num_positive], links.dst[: links.num_positive]
            pairs = torch.cat([dst, src]) * len(links.seeds) + torch.cat([src, dst])
            pairs = pairs if undirected else pairs[: len(src)]
            blocks = tuple(_without(block, pairs, len(links.seeds)) for block in blocks)
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


def _without(block: Topology, pairs: Tensor, num_seeds: int) -> Topology:
    """A block without the edges between pairs of seeds, ``destination * num_seeds + source``. Seeds are its first vertices, so no vertex goes."""
    # Nearly all edges come from other vertices, and the last ones go to others: they are not looked at one by one.
    of_seeds, others = block.indptr[: num_seeds + 1], block.indptr[num_seeds + 1 :]
    num_edges = int(of_seeds[-1])
    inner = (block.indices[:num_edges] < num_seeds).nonzero().squeeze(1)
    ends = (torch.searchsorted(of_seeds, inner, right=True) - 1) * num_seeds + block.indices[inner]
    keep = torch.ones(num_edges, dtype=torch.bool, device=inner.device)
    keep[inner[torch.isin(ends, pairs.to(ends.device))]] = False
    ids = keep.nonzero().squeeze(1)

    def kept(rows: Tensor) -> Tensor:
        return torch.cat([rows[ids], rows[num_edges:]])

    assert block.edge_ids is not None
    return Topology(
        indptr=torch.cat([torch.searchsorted(ids, of_seeds), others - (num_edges - len(ids))]),
        indices=kept(block.indices),
        num_src=block.num_src,
        edge_data={name: kept(rows) for name, rows in block.edge_data.items()},
        edge_ids=kept(block.edge_ids),
        validate=False,
    )
