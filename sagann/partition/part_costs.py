"""Part costs: the cost of any contiguous part of the vertices, from prefix sums and weights. A policy of cutting is a cost.

Equal vertices, equal edges and equal learned seconds are one algorithm (:func:`sagann.partition.balanced_bounds`) on three costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from torch import Tensor

from sagann.errors import InputError, require_choice
from sagann.graph.counting_sort import Array

PartPolicy = Literal["cost", "edges", "vertices"]
"""What parts of equally fast workers have equally much of. cost: seconds, by the cost model. edges: in-edges. vertices:
vertices."""
PART_POLICIES: tuple[PartPolicy, ...] = get_args(PartPolicy)
"Names of all policies by which the vertices are cut into parts."


@dataclass(frozen=True, kw_only=True, slots=True)
class PartCosts:
    """The cost of any part on a worker of speed 1, in O(1)."""

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


def policy_costs(policy: str, indptr: Tensor, learned: PartCosts | None = None) -> PartCosts:
    """The costs that a policy balances.

    Args:
        policy: one of :data:`PART_POLICIES`.
        indptr: int64 [num_dst + 1], CSC offsets.
        learned: for the policy ``cost``: seconds by the cost model (:meth:`sagann.partition.CostModel.part_costs`).
    Raises:
        InputError: no policy has that name, or ``cost`` lacks its learned costs.
    Example:
        >>> import torch
        >>> indptr = torch.tensor([0, 6, 7, 8, 12])
        >>> [policy_costs(policy, indptr).of_part(0, 2) for policy in ("edges", "vertices")]
        [7.0, 2.0]
    """
    require_choice(policy, PART_POLICIES, what="unknown policy of parts", where="policy_costs")
    if policy == "vertices":
        return PartCosts.of_vertices(len(indptr) - 1)
    if policy == "edges":
        return PartCosts.of_edges(indptr)
    if learned is None:
        raise InputError(
            "nothing has been learned to cut parts by",
            value="the policy 'cost' without learned costs",
            where="policy_costs",
            fix="Cut by 'edges' until an epoch has been measured, or pass the costs of a saved cost model.",
        )
    return learned
