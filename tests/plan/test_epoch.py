"""Planned epochs: what the dynamic program adds to the plan of Belady's rule."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from sagann.plan.epoch import Planned, plan_epoch, replaced
from sagann.plan.fastest import fastest
from sagann.plan.fit import hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.machine import Machine
from sagann.plan.residency import BudgetError
from sagann.plan.simulate import simulate
from sagann.plan.steps import UNLIMITED, MemoryPolicy, Plan, Step
from sagann.plan.work import StepWork
from sagann.runtime.streaming.stream import foretell
from tests.plan.machines import ROUND, with_disk
from tests.plan.test_orders import BOUNDS, program_of
from tests.runtime.forecasting.models import model_and_graph


def planned(name: str, budget_bytes: int, policy: MemoryPolicy = "belady", *, trains: bool = True) -> Planned:
    program, hops = program_of(name)
    return plan_epoch(
        program,
        hop_sizes(program, hops, BOUNDS),
        BOUNDS,
        budget_bytes,
        gradients=Gradients(program),
        trains=trains,
        memory_policy=policy,
        same_memory=False,
    )


def budgets(name: str) -> list[int]:
    """Budgets from little to what everything takes."""
    most = planned(name, UNLIMITED).plan.peak_bytes
    found = []
    for part in range(4, 21, 2):
        try:
            planned(name, most * part // 20)
        except BudgetError:
            continue
        found.append(most * part // 20)
    return found


def test_the_program_moves_no_more_and_computes_no_more_again() -> None:
    further = 0
    for name in ("gcn", "gated-gcn"):
        for budget in budgets(name):
            belady, found = (planned(name, budget, policy) for policy in ("belady", "dp"))
            assert found.plan.moved_bytes <= belady.plan.moved_bytes
            assert found.schedule.saves >= belady.schedule.saves
            further += belady.schedule.saves < found.schedule.saves < found.schedule.all_saves
    assert further, "in no plan does a stage save on some intervals and run again on others"


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
