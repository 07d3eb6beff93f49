"""Costs of parts by policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sagann.errors import InputError
from sagann.partition import PART_POLICIES, PartCosts, policy_costs

INDPTR = torch.tensor([0, 6, 7, 8, 12])


def test_a_part_costs_the_weighted_sum_over_its_vertices() -> None:
    sums = np.array([[0, 0], [2, 10], [3, 10], [7, 50]])
    costs = PartCosts(sums=sums, weights=np.array([0.5, 1.0, 0.25]))
    assert costs.num_vertices == 3
    assert costs.of_part(1, 3) == 2 * 0.5 + 5 + 0.25 * 40
    assert costs.of_part(2, 2) == 0


def test_policies_count_vertices_and_edges() -> None:
    assert policy_costs("vertices", INDPTR).of_part(1, 4) == 3
    assert policy_costs("edges", INDPTR).of_part(1, 4) == 6
    learned = PartCosts.of_vertices(4)
    assert policy_costs("cost", INDPTR, learned) is learned


def test_equal_edges_share_the_offsets() -> None:
    assert np.shares_memory(policy_costs("edges", INDPTR).sums, INDPTR.numpy())
    assert policy_costs("vertices", INDPTR).sums.nbytes == 0


def test_unknown_policies_and_missing_costs_are_refused() -> None:
    assert PART_POLICIES == ("cost", "edges", "vertices")
    with pytest.raises(InputError, match="unknown policy of parts: 'rows', expected one of cost, edges, vertices"):
        policy_costs("rows", INDPTR)
    with pytest.raises(
        InputError, match=r"learned to cut parts by: the policy 'cost' without .* Cut by 'edges' until"
    ):
        policy_costs("cost", INDPTR)
