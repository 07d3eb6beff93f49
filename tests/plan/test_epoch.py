"""Planned epochs: the dynamic program places the steps of the plan of Belady's rule."""

from __future__ import annotations

from sagann.plan.beside import FILES
from sagann.plan.epoch import MemoryPolicy, Planned, plan_epoch
from sagann.plan.fit import hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.part_intervals import PartIntervals
from sagann.plan.residency import BudgetError
from sagann.plan.steps import UNLIMITED, Plan, Step
from tests.plan.test_schedule import BOUNDS, program_of


def planned(name: str, budget_bytes: int, policy: MemoryPolicy = "belady", *, trains: bool = True) -> Planned:
    program, hops = program_of(name)
    return plan_epoch(
        program,
        hop_sizes(program, hops, PartIntervals.of_graph(BOUNDS)),
        PartIntervals.of_graph(BOUNDS),
        budget_bytes,
        gradients=Gradients(program),
        trains=trains,
        memory_policy=policy,
        beside=FILES,
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


def steps_of(plan: Plan) -> list[Step]:
    return [each for each in plan.operations if isinstance(each, Step)]


def test_the_program_moves_no_more_and_has_the_same_steps() -> None:
    for name in ("gcn", "gated-gcn"):
        for budget in budgets(name):
            belady, found = (planned(name, budget, policy) for policy in ("belady", "dp"))
            assert found.plan.moved_bytes <= belady.plan.moved_bytes
            assert steps_of(found.plan) == steps_of(belady.plan)
