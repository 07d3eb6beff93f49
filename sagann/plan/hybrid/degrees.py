"""Degree laws: how many edges the vertices of a graph have, as classes of vertices with equal degrees.

The performance model needs the law of a graph, not the graph: expected sizes of mini-batches follow from it
(:mod:`sagann.plan.hybrid.batches`). A law comes from the degrees of a graph that is there, or from three published figures of one
that is not: number of vertices, mean degree, and the part of all edges that the hundredth of the vertices with the most edges has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sagann.errors import InputError

_TOP = 0.01
"Part of the vertices whose part of all edges is stated."
# Where classes of a law begin and end: finer towards the largest degrees, which most edges have as their sources.
_QUANTILES = (*(at / 16 for at in range(16)), *(1 - 2.0**-power for power in range(5, 15)), 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DegreeClass:
    """Vertices that have about the same degrees."""

    share: float
    "Share of all vertices, above 0."
    in_degree: float
    "Mean number of in-edges. Below 1, it is the share of vertices that have one in-edge."
    out_degree: float
    "Mean number of out-edges: a vertex is the source of an edge with a probability in proportion to it."


@dataclass(frozen=True, kw_only=True, slots=True)
class DegreeLaw:
    """Degrees of a graph's vertices."""

    num_vertices: int
    "Number of vertices."
    classes: tuple[DegreeClass, ...]
    "Classes of vertices; the shares add up to 1."

    @property
    def mean_out_degree(self) -> float:
        """Mean number of out-edges of a vertex, which is also that of in-edges."""
        return sum(each.share * each.out_degree for each in self.classes)


def log_normal_law(*, num_vertices: int, mean: float, top_share: float, symmetric: bool) -> DegreeLaw:
    """The log-normal law with a mean degree, of which the hundredth of the vertices with the most edges has a stated part of all edges.

    The logarithm of a degree is normal with deviation s and mean ``ln(mean) - s**2 / 2``. The vertices beyond the quantile z of the normal
    distribution have the part ``cdf(s - z)`` of all edges, so s follows from that part.

    Args:
        num_vertices: number of vertices, at least 1.
        mean: mean degree, above 0.
        top_share: part of all edges that a hundredth of the vertices has, above 0.01 and below 1.
        symmetric: whether a vertex has as many out-edges as in-edges. Otherwise its out-edges are independent of its in-edges; both have
            the same law.
    Raises:
        InputError: no such law has these figures.
    Example:
        >>> law = log_normal_law(num_vertices=111_059_956, mean=14.5, top_share=0.32, symmetric=False)
        >>> round(law.mean_out_degree, 3)
        14.5
    """
    if not (num_vertices >= 1 and 0 < mean < math.inf and _TOP < top_share < 1):
        raise InputError(
            f"a degree law has impossible figures: {num_vertices} vertices, mean degree {mean:g}, "
            f"{top_share:.0%} of the edges at a hundredth of the vertices (in log_normal_law)",
            hint="Give at least one vertex, a mean above 0, and a part above 1% and below 100%.",
        )
    normal = NormalDist()
    deviation = normal.inv_cdf(1 - _TOP) + normal.inv_cdf(top_share)
    # The part of all edges that vertices below a quantile have is the normal distribution, shifted by the deviation.
    edges = [0.0, *(normal.cdf(normal.inv_cdf(at) - deviation) for at in _QUANTILES[1:-1]), 1.0]
    shares = [after - before for before, after in pairwise(_QUANTILES)]
    degrees = [
        mean * (after - before) / share for (before, after), share in zip(pairwise(edges), shares, strict=True)
    ]
    if symmetric:
        classes = [
            DegreeClass(share=share, in_degree=degree, out_degree=degree)
            for share, degree in zip(shares, degrees, strict=True)
        ]
    else:
        both = list(zip(shares, degrees, strict=True))
        classes = [
            DegreeClass(share=share * other, in_degree=ins, out_degree=outs)
            for share, ins in both
            for other, outs in both
        ]
    return DegreeLaw(num_vertices=num_vertices, classes=tuple(classes))


def measured_law(in_degrees: ArrayLike, out_degrees: ArrayLike) -> DegreeLaw:
    """The law of a graph's own degrees, int [num_vertices] each; degrees above 16 fall into classes of a quarter of an octave."""
    ins, outs = np.asarray(in_degrees, np.int64), np.asarray(out_degrees, np.int64)
    rungs = _rungs(outs)
    width = int(rungs.max(initial=0)) + 1
    _, of_class, counts = np.unique(_rungs(ins) * width + rungs, return_inverse=True, return_counts=True)
    # Sums of whole numbers, which double precision holds exactly.
    means = [np.bincount(of_class, weights=degrees) / counts for degrees in (ins, outs)]
    classes = [
        DegreeClass(share=float(count) / len(ins), in_degree=float(in_degree), out_degree=float(out_degree))
        for count, in_degree, out_degree in zip(counts, *means, strict=True)
    ]
    return DegreeLaw(num_vertices=len(ins), classes=tuple(classes))


def _rungs(degrees: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(degrees <= 16, degrees, np.rint(4 * np.log2(np.maximum(degrees, 1))).astype(np.int64))
