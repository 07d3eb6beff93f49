"""LearnedLinks: the edges that a model learns to tell from other pairs of vertices, and the negative links beside them."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from sagann.graph.topology import Topology
from sagann.sampling.hold_out import link_types, proper_edges
from sagann.sampling.links import Links, LinkSampler
from sagann.sampling.minibatch import MiniBatch


class LearnedLinks:
    """Every edge of a topology is learned, self-loops aside, beside negative links that are drawn for it.

    ``topology`` is without the edges that a model has added. If ``undirected``, a link and its reverse are one: neither is a negative link. Unless
    ``keep_positives``, the edges between the ends of positive links are left out of the blocks of a mini-batch.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        negatives: int = 1,
        undirected: bool = True,
        keep_positives: bool = False,
        seed: int = 0,
    ) -> None:
        self.sampler = LinkSampler(topology, negatives=negatives, undirected=undirected, seed=seed)
        self.edges = proper_edges(topology)
        "Numbers of the edges to learn, int64 ascending."
        self._topology, self._types, self._keep_positives = topology, link_types(topology), keep_positives

    def ends_of(self, edges: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sources, destinations and types of some edges, int64 [n]; None for types where edges have none."""
        src, dst = self._topology.indices[edges].long(), self._topology.edge_dst()[edges].long()
        return src, dst, None if self._types is None else self._types[edges]

    def sample(self, edges: Tensor, *, epoch: int, batch: int) -> Links:
        """Some of the edges as positive links, with their negative ones."""
        src, dst, types = self.ends_of(edges)
        return replace(self.sampler.sample(src, dst, epoch=epoch, batch=batch), types=types)

    def joined(self, batch: MiniBatch, links: Links) -> MiniBatch:
        """The mini-batch of links whose ends are its seeds."""
        return batch.with_links(links, keep_positives=self._keep_positives, undirected=self.sampler.undirected)
