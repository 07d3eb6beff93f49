"""The cost of a trainer is learned from noisy seconds: its fixed part, its part for a seed, and a speed that changes."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from sagann.plan.hybrid.costs import CostFit, Damping

DAMPING = Damping()


@given(pairs=st.lists(st.tuples(st.integers(1, 4096), st.floats(1e-6, 1e3)), min_size=1, max_size=40))
def test_whatever_is_measured_costs_are_ones(pairs: list[tuple[int, float]]) -> None:
    fit = CostFit.of(*pairs[0])
    for pair in pairs[1:]:
        fit = fit.after(CostFit.of(*pair), DAMPING)
    found = fit.cost(DAMPING)
    assert found.fixed_s >= 0
    assert found.seed_s > 0
    assert math.isfinite(found.fixed_s + found.seed_s)
    assert found.of(0) == 0
