"""Costs of parts."""

from __future__ import annotations

import numpy as np
import torch

from sagann.partition import PartCosts

INDPTR = torch.tensor([0, 6, 7, 8, 12])


def test_a_part_costs_the_weighted_sum_over_its_vertices() -> None:
    sums = np.array([[0, 0], [2, 10], [3, 10], [7, 50]])
    costs = PartCosts(sums=sums, weights=np.array([0.5, 1.0, 0.25]))
    assert costs.num_vertices == 3
    assert costs.of_part(1, 3) == 2 * 0.5 + 5 + 0.25 * 40
    assert costs.of_part(2, 2) == 0


def test_vertices_and_edges_are_counted() -> None:
    assert PartCosts.of_vertices(4).of_part(1, 4) == 3
    assert PartCosts.of_edges(INDPTR).of_part(1, 4) == 6
