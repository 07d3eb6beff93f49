"""Batches: the vertices and edges that a mini-batch is expected to have, from the degrees of the graph.

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
from dataclasses import dataclass

import numpy as np

from sagann.plan.hybrid.degrees import DegreeLaw


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCounts:
    """Expected vertices and edges of a mini-batch of L hops, by layer as in the paper's Table I."""

    vertices: tuple[float, ...]
    "Number of vertices of layers 0 to L: those whose features are loaded first, the seeds last."
    edges: tuple[float, ...]
    "Number of edges into the vertices of layers 1 to L."

    @property
    def num_edges(self) -> float:
        """Number of edges of all hops."""
        return sum(self.edges)


def expected_counts(
    law: DegreeLaw, fanouts: Sequence[int], num_seeds: float, *, deduplicated: bool = True
) -> BatchCounts:
    """The counts of a mini-batch whose seeds are drawn from all vertices with equal probability.

    Args:
        law: degrees of the graph.
        fanouts: most in-edges that a vertex picks, for each hop; the first number is that of the hop nearest the seeds, -1 picks all.
        num_seeds: number of seeds.
        deduplicated: whether a vertex that several edges reach counts once.
    """
    total = law.num_vertices
    share, in_degree, out_degree = np.array(
        [(each.share, each.in_degree, each.out_degree) for each in law.classes]
    ).T
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
