"""Non-negative least squares from normal equations, exactly, for a handful of unknowns."""

from __future__ import annotations

import numpy as np

from sagann.graph.counting_sort import Array


def non_negative_solution(gram: Array, target: Array) -> Array:
    """Minimise ``w @ gram @ w / 2 - target @ w`` over all w without a negative entry.

    The minimum is the solution of the equations of its positive entries alone. So all 2^n choices of positive entries are
    solved at once, and the best of the solutions that are not negative is the minimum. Not for more than ten unknowns.

    Args:
        gram: float64 [n, n], symmetric and positive definite.
        target: float64 [n].
    Returns:
        float64 [n].
    Example:
        >>> non_negative_solution(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([2.0, -1.0])).tolist()
        [1.0, 0.0]
    """
    size = len(target)
    # Unknowns may have units of any magnitude; with ones on the diagonal the equations are as well conditioned as they can be.
    scale = 1 / np.sqrt(gram.diagonal())
    gram, target = gram * np.outer(scale, scale), target * scale
    chosen = (np.arange(2**size)[:, np.newaxis] >> np.arange(size)) % 2 == 1
    # An unknown that is not chosen has the equation w = 0.
    equations = np.where(chosen[:, :, np.newaxis] & chosen[:, np.newaxis, :], gram, np.eye(size))
    solutions = np.linalg.solve(equations, np.where(chosen, target, 0.0)[:, :, np.newaxis])[:, :, 0]
    # Each solution minimises over its own choice, where its value is -target @ w / 2.
    gains = np.where((solutions >= 0).all(axis=1), solutions @ target, -np.inf)
    return solutions[gains.argmax()] * scale
