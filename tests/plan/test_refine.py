"""Refinement by simulated swaps: never worse than it began, the same for the same seconds, and bounded."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from sagann.plan.fit import hop_sizes
from sagann.plan.refine import refine
from sagann.plan.schedule import Schedule
from sagann.plan.simulate import simulate
from sagann.plan.sizes import needed_bytes
from sagann.plan.spec import verify
from sagann.plan.steps import Plan, Step
from sagann.plan.sweeps import PassKey, Traversal
from tests.plan.machines import ROUND, with_disk
from tests.plan.test_orders import BOUNDS, placed, program_of, schedule_of

SLOW = with_disk(replace(ROUND, num_cores=1 << 20), read_bytes_per_s=1e5, write_bytes_per_s=1e5)


def plan_of(name: str, traversal: Traversal, share: float = 1.5) -> Plan:
    program, hops = program_of(name)
    schedule = Schedule(program, hop_sizes(program, hops, BOUNDS), BOUNDS, traversal=traversal)
    return placed(schedule, int(share * needed_bytes(list(schedule.epoch()), schedule.sizes.of)))


def epoch_s(plan: Plan) -> float:
    return simulate(plan, seconds_of, SLOW, tier="disk").seconds


def seconds_of(step: Step) -> float:
    """Of chunks on the diagonal, many times those of others."""
    return 0.3 if step.dst_interval == step.interval else 0.02


@pytest.mark.parametrize("name", ["gat", "maxpool-gcn"])
def test_refinement_is_never_worse_than_where_it_began(name: str) -> None:
    begin = Traversal(widths={PassKey("gather_grad", 0, 1): 2})
    found, again = (
        refine(
            lambda traversal: plan_of(name, traversal), begin, seconds_of, SLOW, tier="disk", most_simulations=25
        )
        for _ in range(2)
    )
    assert found == again
    plan = plan_of(name, found)
    assert epoch_s(plan) <= epoch_s(plan_of(name, begin))
    verify(plan, list(schedule_of(name, "column", traversal=found).epoch()))


def test_swaps_gain_where_chunks_differ() -> None:
    found = refine(lambda traversal: plan_of("gat", traversal), Traversal(), seconds_of, SLOW, tier="disk")
    assert found.refined
    began_s = epoch_s(plan_of("gat", Traversal()))
    assert epoch_s(plan_of("gat", found)) < began_s
    tried = [
        refine(lambda each: plan_of("gat", each), Traversal(), seconds_of, SLOW, tier="disk", most_simulations=most)
        for most in (1, 5, 20)
    ]
    counts = [epoch_s(plan_of("gat", traversal)) for traversal in tried]
    assert all(more <= less for less, more in pairwise(counts))
    assert counts[0] == began_s
