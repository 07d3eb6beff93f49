"""The fastest policy has the same steps, and no other one is faster in simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from sagann.plan.epoch import replaced
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


def steps_of(plan: Plan) -> list[Step]:
    return [each for each in plan.operations if isinstance(each, Step)]


@pytest.mark.parametrize("machine", [SLOW_DISK, FAST_DISK])
def test_no_policy_is_faster(machine: Machine) -> None:
    model, graph = model_and_graph()
    found = foretell(model, graph, budget_bytes=600_000, on_disk=True)
    assert found.plan.num_intervals > 1
    work = StepWork(found.schedule)

    def seconds(plan: Plan) -> float:
        return simulate(plan, lambda step: work.of(step).seconds(machine), machine, tier="disk").seconds

    best = fastest(found, machine, tier="disk").plan
    every = {policy: replaced(found, policy).plan for policy in get_args(MemoryPolicy)}
    for policy, plan in every.items():
        assert plan.memory_policy == policy
        assert steps_of(plan) == steps_of(best) == steps_of(found.plan)
        assert plan.peak_bytes <= plan.budget_bytes == found.plan.budget_bytes
    taken = {policy: seconds(plan) for policy, plan in every.items()}
    assert seconds(best) == min(taken.values()) == taken[best.memory_policy]
    if machine is SLOW_DISK:
        # Copies are all that counts.
        assert best.moved_bytes <= 1.01 * min(plan.moved_bytes for plan in every.values())
