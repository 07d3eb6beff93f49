"""Strips are as wide as memory allows, where this saves loads."""

from __future__ import annotations

from sagann.plan.epoch import plan_epoch
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.sweeps import Traversal
from tests.plan.test_orders import program_of, schedule_of


def test_strips_are_as_wide_as_memory_allows_and_move_fewer_bytes() -> None:
    program, hops = program_of("gated-gcn")
    gradients = schedule_of("gated-gcn", "column").gradients
    won = []
    for budget_bytes in (20_000, 40_000, 1 << 30):
        bounds = fitted_intervals(program, hops, budget_bytes, gradients=gradients, same_memory=False).bounds
        sizes = hop_sizes(program, hops, bounds)
        moved = {}
        for traversal in (None, Traversal(), Traversal(direction="ascending")):
            found = plan_epoch(
                program, sizes, bounds, budget_bytes, gradients=gradients, traversal=traversal, same_memory=False
            )
            assert found.plan.peak_bytes <= budget_bytes
            moved[None if traversal is None else traversal.direction] = found.plan.moved_bytes
        assert moved[None] <= moved["zigzag"] <= moved["ascending"]
        won.append(moved[None] / moved["ascending"])
    assert min(won) < 0.9
    assert won[-1] == 1.0, "where everything fits there is nothing to gain"
