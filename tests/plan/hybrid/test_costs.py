"""The cost of a trainer is learned from noisy seconds: its fixed part, its part for a seed, and a speed that changes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, strategies as st

from sagann.plan.hybrid.costs import Cost, CostFit, Damping

DAMPING = Damping()
TRUE = Cost(fixed_s=0.030, seed_s=1e-4)


def fitted(
    seeds: Sequence[int], seconds: Callable[[int], float], *, noise: float = 0.0, damping: Damping = DAMPING
) -> CostFit:
    """The fit of measurements with so many seeds each."""
    generator = random.Random(1)
    pairs = [(each, seconds(each) * math.exp(generator.gauss(0.0, noise))) for each in seeds]
    fit = CostFit.of(*pairs[0])
    for pair in pairs[1:]:
        fit = fit.after(CostFit.of(*pair), damping)
    return fit


def test_nearly_equal_shares_with_noise_have_a_small_fixed_part() -> None:
    found = fitted([198, 202] * 20, TRUE.of, noise=0.1).cost(DAMPING)
    assert found.fixed_s < 0.2 * TRUE.of(200)
    assert found.of(200) == pytest.approx(TRUE.of(200), rel=0.1)


def test_different_shares_give_both_parts() -> None:
    found = fitted([100, 300, 500] * 20, TRUE.of, damping=Damping(prior=1e-6)).cost(Damping(prior=1e-6))
    assert found.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.02)
    assert found.seed_s == pytest.approx(TRUE.seed_s, rel=0.02)
    # The prior takes some of the fixed part, never of the seconds in the middle of what was measured.
    found = fitted([100, 300, 500] * 20, TRUE.of, noise=0.1).cost(DAMPING)
    assert 0.5 * TRUE.fixed_s < found.fixed_s < 1.2 * TRUE.fixed_s
    assert found.of(300) == pytest.approx(TRUE.of(300), rel=0.1)


def test_a_pause_of_one_iteration_moves_little() -> None:
    fit = fitted([100, 300] * 20, TRUE.of)
    paused = fit.after(CostFit.of(300, 100 * TRUE.of(300)), DAMPING)
    assert paused.cost(DAMPING).of(300) < 1.3 * TRUE.of(300)
    assert paused.cost(DAMPING) == fit.after(CostFit.of(300, 50 * TRUE.of(300)), DAMPING).cost(DAMPING)


def test_two_surprises_in_a_row_are_a_change() -> None:
    fit = fitted([100, 300] * 20, TRUE.of)
    before = fit.cost(DAMPING)
    once = fit.after(CostFit.of(300, 2 * TRUE.of(300)), DAMPING)
    assert once.cost(DAMPING).of(300) < 1.4 * TRUE.of(300)
    twice = once.after(CostFit.of(300, 2 * TRUE.of(300)), DAMPING)
    assert twice.cost(DAMPING).of(300) == pytest.approx(2 * TRUE.of(300), rel=0.05)
    # The line moves as a whole, and what was learned of fewer seeds counts on.
    assert twice.cost(DAMPING).of(100) == pytest.approx(2 * before.of(100), rel=0.1)
    # Faster is a change, too; a pause and a hurry after one another are none.
    back = fit
    for _ in range(2):
        back = back.after(CostFit.of(300, 0.5 * TRUE.of(300)), DAMPING)
    assert back.cost(DAMPING).of(300) == pytest.approx(0.5 * TRUE.of(300), rel=0.05)
    swung = once.after(CostFit.of(300, 0.5 * TRUE.of(300)), DAMPING)
    assert swung.cost(DAMPING).of(300) == pytest.approx(TRUE.of(300), rel=0.15)


def test_a_trainer_without_seeds_is_believed_to_become_faster_but_ever_less() -> None:
    fit = CostFit.of(100, 1.0)
    factors = []
    for _ in range(8):
        rested = fit.rested(DAMPING)
        factors.append(rested.cost(DAMPING).of(100) / fit.cost(DAMPING).of(100))
        # Two iterations in a row are one rest.
        again = rested.rested(DAMPING).cost(DAMPING).of(100) / rested.cost(DAMPING).of(100)
        assert again == pytest.approx(factors[-1])
        fit = rested.after(CostFit.of(100, 1.0), DAMPING)
    assert factors[:3] == pytest.approx([0.997, 0.9985, 0.99925])
    assert factors[-1] == pytest.approx(factors[2])


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
