"""What a mean divides by."""

from __future__ import annotations

from torch import Tensor

from sagann.graph.topology import Topology


def divisors(topology: Topology, like: Tensor) -> Tensor:
    """In-degrees, 1 where there are none, that broadcast against rows of destinations like ``like``."""
    degrees = topology.in_degrees().clamp(min=1).to(like.dtype)
    return degrees.reshape(-1, *(1,) * (like.ndim - 1))
