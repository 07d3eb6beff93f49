"""Mini-batches that are expected of a graph that is not at hand, from the law of its degrees.

A law is classes of vertices with equal degrees. It comes from three published figures: number of vertices, mean degree, and the part of all
edges that the hundredth of the vertices with the most edges has.

Edges are taken for independent: their sources are drawn with a probability in proportion to the out-degree (the configuration model). So
after hop k the share x of a class of vertices that is in the batch becomes

    x' = 1 - (1 - x) exp(-N d_out / (V mean(d_out)))

where N of the picked edges were not picked before. Every vertex counts once in a hop, as in the blocks of :mod:`sagann.sampling`: destinations
of hop k are all vertices so far, and each picks min(d_in, fanout) of its edges. A vertex that picked a part c of its edges in earlier hops
picks (1 - c) min(d_in, fanout) others: none, where its edges are fewer than the fanout.

Without ``deduplicated`` every edge brings a vertex of its own, as sizes from fanouts alone assume. Real graphs have triangles, which make a
batch smaller than this: neighbours of neighbours are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sagann.hybrid.forecast import BatchCounts

_TOP = 0.01
"Part of the vertices whose part of all edges is stated."
# Where classes of a law begin and end: finer towards the largest degrees, which most edges have as their sources.
_QUANTILES = (*(at / 16 for at in range(16)), *(1 - 2.0**-power for power in range(5, 15)), 1.0)


class DegreeLaw(NamedTuple):
    """Classes of vertices with equal degrees: arrays of an entry per class."""

    num_vertices: int
    share: np.ndarray
    "Share of all vertices, above 0; the shares add up to 1."
    in_degree: np.ndarray
    "Mean number of in-edges. Below 1, it is the share of vertices that have one in-edge."
    out_degree: np.ndarray
    "Mean number of out-edges: a vertex is the source of an edge with a probability in proportion to it."

    @property
    def mean_out_degree(self) -> float:
        """Mean number of out-edges of a vertex, which is also that of in-edges."""
        return float(self.share @ self.out_degree)


def log_normal_law(*, num_vertices: int, mean: float, top_share: float, symmetric: bool) -> DegreeLaw:
    """The log-normal law with a mean degree, of which the hundredth of the vertices with the most edges has a stated part of all edges.

    The logarithm of a degree is normal with deviation s and mean ``ln(mean) - s**2 / 2``. The vertices beyond the quantile z of the normal
    distribution have the part ``cdf(s - z)`` of all edges, so s follows from that part.

    Example:
        >>> law = log_normal_law(num_vertices=111_059_956, mean=14.5, top_share=0.32, symmetric=False)
        >>> round(law.mean_out_degree, 3)
        14.5
    """
    normal = NormalDist()
    deviation = normal.inv_cdf(1 - _TOP) + normal.inv_cdf(top_share)
    # The part of all edges that vertices below a quantile have is the normal distribution, shifted by the deviation.
    edges = [0.0, *(normal.cdf(normal.inv_cdf(at) - deviation) for at in _QUANTILES[1:-1]), 1.0]
    share = np.diff(_QUANTILES)
    degree = mean * np.diff(edges) / share
    if symmetric:
        return DegreeLaw(num_vertices, share, degree, degree)
    count = len(share)
    return DegreeLaw(num_vertices, np.outer(share, share).ravel(), degree.repeat(count), np.tile(degree, count))


def expected_counts(
    law: DegreeLaw, fanouts: Sequence[int], num_seeds: float, *, deduplicated: bool = True
) -> BatchCounts:
    """The counts of a mini-batch whose seeds are drawn from all vertices with equal probability."""
    total, share, in_degree, out_degree = law
    held = np.full(len(share), num_seeds / total)
    # By the hop that brought vertices: their share of each class, and the part of their edges that they have not picked.
    brought, left = [held], [np.ones(len(share))]
    vertices, edges = [num_seeds], list[float]()
    for fanout in fanouts:
        picks = in_degree if fanout < 0 else np.minimum(in_degree, fanout)
        picked = total * float(share @ (picks * held))
        fresh = total * float(share @ (picks * sum(new * part for new, part in zip(brought, left, strict=True))))
        remaining = 1 - np.divide(picks, in_degree, out=np.zeros_like(picks), where=in_degree > 0)
        left = [part * remaining for part in left]
        drawn = out_degree / (total * law.mean_out_degree) if picked else np.zeros(len(share))
        new = (1 - held) * -np.expm1(-fresh * drawn) if deduplicated else picked * drawn
        brought, left = [*brought, new], [*left, np.ones(len(share))]
        held = held + new
        edges.append(picked)
        vertices.append(total * float(share @ held))
    return BatchCounts(vertices=tuple(reversed(vertices)), edges=tuple(reversed(edges)))
