"""Ranges of vertices: which worker owns which vertices. Each worker owns one contiguous range; a range may be empty.

References:
    Jia et al., ROC, MLSys 2020, Sec. 4.2: contiguous ranges of vertices, found by a search in prefix sums. ROC balances the
    predicted run time; the policies here balance edges or vertices, with which the paper compares.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from sagann.errors import require_choice
from sagann.partition.balance import balanced_bounds

Balance = Literal["edges", "vertices", "cost"]
"""What ranges have about equally many of. edges: in-edges of their vertices, which the work of a layer goes by. cost: ranges begin with equal
edges; between epochs they move to equal seconds, as the cost model predicts them (:func:`sagann.partition.decide_repartition`)."""
BALANCES: tuple[Balance, ...] = get_args(Balance)
"Names of all policies."


def vertex_ranges(indptr: Tensor, num_ranges: int, by: str = "edges") -> tuple[int, ...]:
    """Cut the vertices of a graph into contiguous ranges, so that the largest one is as small as it can be (:func:`balanced_bounds`).

    A vertex with more in-edges than a range should have is not divided, so that a range beside it may be empty.

    Args:
        indptr: CSC offsets, int64 [num_vertices + 1].
        num_ranges: number of ranges, at least 1.
        by: name of the policy.
    Returns:
        ``num_ranges + 1`` ascending bounds, from 0 to num_vertices: range r is ``bounds[r]`` to ``bounds[r + 1] - 1``.
    Raises:
        InputError: no policy has that name.
    Example:
        >>> import torch
        >>> vertex_ranges(torch.tensor([0, 4, 5, 6, 8]), 2)
        (0, 1, 4)
        >>> vertex_ranges(torch.tensor([0, 4, 5, 6, 8]), 2, by="vertices")
        (0, 2, 4)
    """
    require_choice(by, BALANCES, what="unknown balance", where="vertex_ranges")
    # Without edges all cuts are equally good.
    is_by_vertices = by == "vertices" or not int(indptr[-1])
    costs = range(len(indptr)) if is_by_vertices else indptr.numpy()
    return balanced_bounds(costs, [1.0] * num_ranges)
