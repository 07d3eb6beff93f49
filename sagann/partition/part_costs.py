"""Part costs: the cost of any contiguous part of the vertices, from prefix sums and weights.

Equal vertices, equal edges and equal learned seconds are one algorithm (:func:`sagann.partition.balanced_bounds`) on three costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sagann.graph.counting_sort import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class PartCosts:
    """The cost of any part on a worker of speed 1, in O(1).

    Example:
        >>> import torch
        >>> indptr = torch.tensor([0, 6, 7, 8, 12])
        >>> PartCosts.of_edges(indptr).of_part(0, 2), PartCosts.of_vertices(4).of_part(0, 2)
        (7.0, 2.0)
    """

    sums: Array
    """int64 [num_vertices + 1, columns], contiguous: row v has sums over the vertices before v, which do not decrease. Callers
    must not modify it."""
    weights: Array
    "float64 [1 + columns], none negative: cost of a vertex, then cost of one unit of each column."

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return len(self.sums) - 1

    def of_part(self, first: int, stop: int) -> float:
        """The cost of the vertices ``first`` to ``stop - 1``."""
        return float(self.weights @ [stop - first, *(self.sums[stop] - self.sums[first])])

    @classmethod
    def of_vertices(cls, num_vertices: int) -> PartCosts:
        """A vertex costs 1. Takes no memory, whatever the number of vertices."""
        return cls(sums=np.empty((num_vertices + 1, 0), dtype=np.int64), weights=np.ones(1))

    @classmethod
    def of_edges(cls, indptr: Tensor) -> PartCosts:
        """An in-edge costs 1, and a vertex nothing. ``indptr``, int64 [num_dst + 1], is shared."""
        return cls(sums=indptr.contiguous().numpy()[:, np.newaxis], weights=np.array([0.0, 1.0]))
