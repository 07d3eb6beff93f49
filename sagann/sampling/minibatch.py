"""MiniBatch: the sampled blocks of some seeds, and what a training step reads with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sagann.graph.rows import Arrays, gather_ranges
from sagann.graph.topology import Topology
from sagann.kernels.edge.cpu.run import work_of
from sagann.sampling.links import Links


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MiniBatch(Arrays):
    """All that a training step needs: ``model(batch.blocks, batch.features)`` gives a row for each of ``batch.seeds``.

    The sources of a block are the destinations of the block before it. The first of them are its own destinations. A sampler gives blocks and
    ids; :class:`sagann.MiniBatches` adds the rows of features, the labels and the targets.
    """

    blocks: tuple[Topology, ...]
    """A topology per hop, in the order in which a model walks them: the hop farthest from the seeds is the first. Edge data
    are the rows of the graph's; ``edge_ids`` are the edges' ids in the graph."""
    src_ids: Tensor
    "int64 [blocks[0].num_src]: ids in the graph of the sources of the first block."
    seeds: Tensor
    "int64 [blocks[-1].num_dst]: ids in the graph of the destinations of the last block."
    features: Tensor | None = None
    "Features of ``src_ids``, [blocks[0].num_src, F], dense or ``torch.sparse_csr``; None where the graph has none, and before they are loaded."
    labels: Tensor | None = None
    "Labels of ``seeds``, int64 [num_seeds] or uint8 [num_seeds, num_classes]; None where the graph has none."
    targets: Tensor | None = None
    "Targets of ``seeds``, float32 [num_seeds] or [num_seeds, num_targets]; None where the graph has none."
    links: Links | None = None
    "The links whose ends the seeds are; None for seeds of another kind."

    @property
    def num_edges(self) -> int:
        """Number of edges in all blocks."""
        return sum(block.num_edges for block in self.blocks)

    def to(self, device: torch.device | str) -> MiniBatch:
        """The same batch on ``device``; this object itself if its edges are already there."""
        is_there = self.blocks[0].to(device) is self.blocks[0]
        return self if is_there else self.mapped(lambda array: array.to(device))

    def with_links(
        self, links: Links, *, ends: tuple[Tensor, Tensor] | None = None, undirected: bool = True
    ) -> MiniBatch:
        """The blocks for links whose ends are the seeds, without the edges that would give positive ones away.

        These are all edges, of any type, that join the two ends of a positive link; with ``undirected=False`` only those in its direction. Other
        edges stay as they were picked, so an end may have fewer than its fanout. ``ends`` are ids of sources and destinations of all positive links,
        int64, where those of ``links`` are only a share of them.
        """
        # The number of each vertex among the ends, or -1.
        if ends is None:
            # The ends are the seeds, which are the first vertices.
            num_ends, count = len(links.seeds), links.num_positive
            src, dst = links.src[:count], links.dst[:count]
            number = torch.arange(len(self.src_ids), device=self.src_ids.device)
            number[num_ends:] = -1
        else:
            known, numbers = torch.cat(ends).to(self.src_ids.device).unique(return_inverse=True)
            num_ends, (src, dst) = len(known), numbers.chunk(2)
            found = torch.searchsorted(known, self.src_ids).clamp_(max=num_ends - 1)
            number = torch.where(known[found] == self.src_ids, found, -1)
        pairs = dst * num_ends + src
        pairs = (torch.cat([pairs, src * num_ends + dst]) if undirected else pairs).to(number.device)
        blocks = tuple(_without(block, pairs, number, num_ends) for block in self.blocks)
        return replace(self, blocks=blocks, links=links)

    def prepare(self) -> MiniBatch:
        """Make what a training step on the processor needs of the blocks; returns the same object.

        These are the out-edges, which the backward pass reads, and the division of both passes into work items. A thread
        that samples ahead calls this, and the training step does not wait for it. It does not change any result.
        """
        for block in self.blocks:
            block.csr(parallel=False)
            work_of(block, "dst")
            work_of(block, "src")
        return self


def _without(block: Topology, pairs: Tensor, number: Tensor, num_ends: int) -> Topology:
    """A block without the edges between some pairs of ends, ``destination * num_ends + source``. No vertex goes."""
    # Few destinations are ends: the in-edges of others are not looked at.
    rows = (number[: block.num_dst] >= 0).nonzero().squeeze(1)
    offsets, edges = gather_ranges(block.indptr, rows)
    src = number[block.indices[edges]]
    inner = (src >= 0).nonzero().squeeze(1)
    dst = number[rows[torch.searchsorted(offsets, inner, right=True) - 1]]
    gone = edges[inner[torch.isin(dst * num_ends + src[inner], pairs)]]
    if not len(gone):
        return block
    # Nearly all edges come later: they are not looked at one by one.
    stop = int(gone[-1]) + 1
    ids = torch.ones(stop, dtype=torch.bool, device=gone.device).index_fill_(0, gone, False).nonzero().squeeze(1)

    def kept(rows: Tensor) -> Tensor:
        return torch.cat([rows[ids], rows[stop:]])

    assert block.edge_ids is not None
    return Topology(
        indptr=block.indptr - torch.searchsorted(gone, block.indptr),
        indices=kept(block.indices),
        num_src=block.num_src,
        edge_data={name: kept(rows) for name, rows in block.edge_data.items()},
        edge_ids=kept(block.edge_ids),
        validate=False,
    )
