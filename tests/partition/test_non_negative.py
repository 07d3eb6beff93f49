"""Non-negative least squares: the conditions of an optimum hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sagann.partition.non_negative import non_negative_solution

SIZES = st.integers(1, 6)


def problem(seed: int, size: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of measurements and their values; the columns' magnitudes differ by powers of 10."""
    random = np.random.default_rng(seed)
    rows = random.random((3 * size, size)) * 10.0 ** random.uniform(-spread, spread, size)
    return rows, rows @ random.normal(size=size) + 0.1 * random.normal(size=3 * size)


@given(st.integers(0, 2**32), SIZES, st.sampled_from([0.0, 6.0]))
def test_no_other_weights_are_better(seed: int, size: int, spread: float) -> None:
    rows, values = problem(seed, size, spread)
    gram, target = rows.T @ rows, rows.T @ values
    found = non_negative_solution(gram, target)
    # Karush, Kuhn and Tucker: for a convex problem these conditions are those of the minimum.
    gradient = gram @ found - target
    scale = np.abs(gram) @ np.abs(found) + np.abs(target)
    assert (found >= 0).all()
    assert (gradient >= -1e-8 * scale).all()
    assert (np.abs(gradient[found > 0]) <= 1e-8 * scale[found > 0]).all()


def test_equations_without_a_unique_solution_are_an_error() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        non_negative_solution(np.ones((2, 2)), np.ones(2))
