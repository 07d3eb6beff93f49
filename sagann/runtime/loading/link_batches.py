"""LinkBatches: mini-batches whose seeds are the ends of links, some true and some false."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sagann.graph import Graph
from sagann.graph.topology import Topology
from sagann.runtime.loading.minibatches import MiniBatches
from sagann.runtime.loading.sampling_place import SampleOn
from sagann.sampling import LinkSampler
from sagann.sampling.hold_out import link_types, proper_edges
from sagann.sampling.sampled import Sampled


class LinkBatches(MiniBatches):
    """The mini-batches of links: every edge to learn is in one batch of an epoch, beside negative links drawn for it.

    The model's rows of a batch are those of ``batch.links.seeds``. Its blocks lack the edges between the two ends of a positive link, which would give
    it away.

    Args:
        graph: as the model reads it, as for :class:`MiniBatches`.
        learned: the edges to learn, of the same vertices, without those that the model has added. Self-loops are left out.
        fanouts: as for :class:`MiniBatches`.
        batch_size: number of positive links in a batch.
        negatives: number of negative links for each.
        keep_positives: leave the edges between the ends of positive links in the blocks.
        undirected: a link and its reverse are one: both are left out of the blocks, and neither is a negative link.
        seed: seed of the order, of the sampler and of the negative links.
        threads, ahead, device, sample_on: as for :class:`MiniBatches`.
    """

    def __init__(
        self,
        graph: Graph,
        learned: Topology,
        *,
        fanouts: Sequence[int],
        batch_size: int = 1024,
        negatives: int = 1,
        keep_positives: bool = False,
        undirected: bool = True,
        seed: int = 0,
        threads: int = 1,
        ahead: int | None = None,
        device: torch.device | str = "cpu",
        sample_on: SampleOn = "cpu",
    ) -> None:
        self.learned = learned
        self.links = LinkSampler(learned, negatives=negatives, undirected=undirected, seed=seed)
        self.keep_positives = keep_positives
        super().__init__(
            graph,
            fanouts=fanouts,
            batch_size=batch_size,
            seeds=proper_edges(learned),
            seed=seed,
            threads=threads,
            ahead=ahead,
            device=device,
            sample_on=sample_on,
        )
        self._dst = learned.edge_dst()
        self._types = link_types(learned)

    def sample(self, seeds: Tensor, *, epoch: int, batch: int) -> Sampled:
        """The blocks of a batch for some edges of ``self.learned``, by their numbers, and for their negative links."""
        src, dst = self.learned.indices[seeds].long(), self._dst[seeds].long()
        links = self.links.sample(src, dst, epoch=epoch, batch=batch)
        links = replace(links, types=None if self._types is None else self._types[seeds])
        options = {"keep_positives": self.keep_positives, "undirected": self.links.undirected}
        return self._sampled(links.seeds, epoch, batch, lambda sampled: sampled.with_links(links, **options))

    def _chosen(self, graph: Graph, seeds: str | Tensor | Sequence[int]) -> Tensor:
        assert isinstance(seeds, Tensor)
        return seeds
