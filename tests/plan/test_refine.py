"""Refinement by simulated swaps: never worse than it began, the same for the same seconds, and bounded."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from sagann.plan.choose_intervals import hop_sizes
from sagann.plan.fit import needed_bytes
from sagann.plan.refine import refine
from sagann.plan.schedule import Schedule
from sagann.plan.simulate import simulate
from sagann.plan.steps import Plan, Step
from sagann.plan.visits import PassKey, Visits
from tests.plan.machines import ROUND
from tests.plan.test_orders import BOUNDS, placed, program_of, schedule_of
from tests.plan.test_residency import obey

SLOW = replace(ROUND, disk_read_bytes=1e5, disk_write_bytes=1e5, num_cores=1 << 20)


def plan_of(name: str, visits: Visits, share: float = 1.5) -> Plan:
    program, hops = program_of(name)
    schedule = Schedule(program, hop_sizes(program, hops, BOUNDS), BOUNDS, visits=visits)
    return placed(schedule, int(share * needed_bytes(list(schedule.epoch()), schedule.sizes.of)))


def seconds_of(step: Step) -> float:
    """Of chunks on the diagonal, many times those of others."""
    return 0.3 if step.dst_interval == step.interval else 0.02


@pytest.mark.parametrize("name", ["gat", "gated-gcn", "maxpool-gcn"])
def test_refinement_is_never_worse_than_where_it_began(name: str) -> None:
    begin = Visits(widths={PassKey("gather_grad", 0): 2})
    found = refine(lambda visits: plan_of(name, visits), begin, seconds_of, SLOW, tier="disk", most_simulations=25)
    again = refine(lambda visits: plan_of(name, visits), begin, seconds_of, SLOW, tier="disk", most_simulations=25)
    assert found == again
    assert found.num_simulations <= 25
    assert found.seconds <= found.began_s
    plan = plan_of(name, found.visits)
    assert found.began_s == simulate(plan_of(name, begin), seconds_of, SLOW, tier="disk").seconds
    assert found.seconds == simulate(plan, seconds_of, SLOW, tier="disk").seconds
    schedule = schedule_of(name, "column", visits=found.visits)
    blocks = {block for step in schedule.epoch() for block in step.blocks}
    obey(plan, {block: schedule.sizes.of(block) for block in blocks}, {*schedule.initial(), *schedule.upstream()})


def test_swaps_gain_where_chunks_differ() -> None:
    found = refine(lambda visits: plan_of("gat", visits), Visits(), seconds_of, SLOW, tier="disk")
    assert found.visits.refined
    assert found.seconds < found.began_s
    counts = [
        refine(
            lambda visits: plan_of("gat", visits), Visits(), seconds_of, SLOW, tier="disk", most_simulations=most
        ).seconds
        for most in (1, 5, 20)
    ]
    assert all(more <= less for less, more in pairwise(counts))
    assert counts[0] == found.began_s
