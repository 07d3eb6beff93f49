"""The fastest policy has the same steps, and no other one is faster in simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from sagann.plan.epoch import Planned, replaced
from sagann.plan.fastest import fastest
from sagann.plan.machine import Machine
from sagann.plan.simulate import simulate
from sagann.plan.steps import MemoryPolicy, Plan, Step
from sagann.plan.work import StepWork
from sagann.runtime.streaming.stream import foretell
from tests.plan.machines import ROUND, with_disk
from tests.runtime.forecasting.models import model_and_graph

SLOW_DISK = with_disk(replace(ROUND, num_cores=64), read_bytes_per_s=1e3, write_bytes_per_s=1e3)
FAST_DISK = with_disk(replace(ROUND, num_cores=64), read_bytes_per_s=1e12, write_bytes_per_s=1e12)


def epoch() -> Planned:
    model, graph = model_and_graph()
    return foretell(model, graph, budget_bytes=600_000, on_disk=True)


def steps_of(plan: Plan) -> list[Step]:
    return [each for each in plan.operations if isinstance(each, Step)]


@pytest.mark.parametrize("machine", [SLOW_DISK, FAST_DISK])
def test_no_policy_is_faster(machine: Machine) -> None:
    found = epoch()
    assert found.plan.num_intervals > 1
    work = StepWork(found.schedule)

    def seconds(plan: Plan) -> float:
        return simulate(plan, lambda step: work.of(step).seconds(machine), machine, tier="disk").seconds

    best = fastest(found, machine, tier="disk").plan
    assert steps_of(best) == steps_of(found.plan)
    every = {policy: seconds(replaced(found, policy).plan) for policy in get_args(MemoryPolicy)}
    assert seconds(best) == min(every.values()) == every[best.memory_policy]


def test_where_copies_are_all_that_counts_no_plan_moves_fewer_bytes() -> None:
    found = epoch()
    best = fastest(found, SLOW_DISK, tier="disk").plan
    assert (
        best.moved_bytes
        <= min(replaced(found, policy).plan.moved_bytes for policy in get_args(MemoryPolicy)) * 1.01
    )


def test_another_policy_places_the_same_steps_within_the_same_budget() -> None:
    found = epoch()
    for policy in get_args(MemoryPolicy):
        plan = replaced(found, policy).plan
        assert plan.memory_policy == policy
        assert steps_of(plan) == steps_of(found.plan)
        assert plan.peak_bytes <= plan.budget_bytes == found.plan.budget_bytes
