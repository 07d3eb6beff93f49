"""Planned epochs: what the dynamic program adds to the plan of Belady's rule."""

from __future__ import annotations

from sagann.plan.epoch import Planned, plan_epoch
from sagann.plan.fit import hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.residency import BudgetError
from sagann.plan.steps import UNLIMITED, MemoryPolicy
from tests.plan.test_orders import BOUNDS, program_of


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
    for part in range(4, 21):
        try:
            planned(name, most * part // 20)
        except BudgetError:
            continue
        found.append(most * part // 20)
    return found


def test_the_program_moves_no_more_and_computes_no_more_again() -> None:
    further = 0
    for name in ("gcn", "gat", "gated-gcn"):
        for budget in budgets(name):
            belady, found = (planned(name, budget, policy) for policy in ("belady", "dp"))
            assert found.plan.moved_bytes <= belady.plan.moved_bytes
            assert found.schedule.saves >= belady.schedule.saves
            further += belady.schedule.saves < found.schedule.saves < found.schedule.all_saves
    assert further, "in no plan does a stage save on some intervals and run again on others"
