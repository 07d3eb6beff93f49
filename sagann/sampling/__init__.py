"""Mini-batches: seeds in batches, and the in-edges that a model walks from them. Pure algorithms over a Topology."""

from sagann.sampling.batches import seed_batches
from sagann.sampling.device_sampler import DeviceSampler
from sagann.sampling.hold_out import hold_out_links
from sagann.sampling.links import Links, LinkSampler, negative_destinations
from sagann.sampling.neighbor_sampler import NeighborSampler
from sagann.sampling.sampled import Sampled

__all__ = [
    "DeviceSampler",
    "LinkSampler",
    "Links",
    "NeighborSampler",
    "Sampled",
    "hold_out_links",
    "negative_destinations",
    "seed_batches",
]
