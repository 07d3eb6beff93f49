"""Mini-batches: seeds in batches, and the in-edges that a model walks from them. Pure algorithms over a Topology."""

from sagann.sampling.batches import seed_batches
from sagann.sampling.hold_out import LearnedLinks, hold_out_links
from sagann.sampling.links import Links, LinkSampler, negative_destinations
from sagann.sampling.minibatch import MiniBatch
from sagann.sampling.neighbor_sampler import NeighborSampler

__all__ = [
    "LearnedLinks",
    "LinkSampler",
    "Links",
    "MiniBatch",
    "NeighborSampler",
    "hold_out_links",
    "negative_destinations",
    "seed_batches",
]
