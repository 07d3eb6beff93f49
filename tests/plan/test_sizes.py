"""Sizes of a plan's own objects: they are foretold, and count towards the budget of a process."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from sagann.plan import equal_vertices, sizes
from sagann.plan.beside import FILES
from sagann.plan.epoch import plan_epoch
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.part_intervals import PartIntervals
from sagann.plan.residency import BudgetError
from sagann.plan.sizes import plan_bytes
from tests.plan.test_schedule import program_of

FINE = equal_vertices(200, 20)
BUDGET = 100_000


@pytest.mark.parametrize("name", ["gat", "gcn"])
def test_the_objects_of_a_plan_take_the_bytes_that_are_foretold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "FREE_BYTES", 0)
    monkeypatch.setattr(sizes, "_CHUNK_BYTES", 0)
    program, hops = program_of(name)
    sized, gradients = hop_sizes(program, hops, PartIntervals.of_graph(FINE)), Gradients(program)
    foretold = plan_bytes(program, sized, PartIntervals.of_graph(FINE), gradients, BUDGET, FILES)
    gc.collect()
    tracemalloc.start()
    planned = plan_epoch(
        program, sized, PartIntervals.of_graph(FINE), BUDGET + foretold, gradients=gradients, beside=FILES
    )
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert planned.plan.num_intervals == 20
    assert 0.5 * foretold < taken < 1.4 * foretold


def test_a_budget_that_finer_plans_exceed_is_refused_with_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    program, hops = program_of("gat")
    gradients = Gradients(program)

    def fitted(budget_bytes: int) -> int:
        return len(fitted_intervals(program, hops, budget_bytes, gradients=gradients, beside=FILES).bounds) - 1

    assert fitted(30_000) > 1
    monkeypatch.setattr(sizes, "FREE_BYTES", 0)
    with pytest.raises(
        BudgetError, match="for the objects of the plan, and the others for its largest step"
    ) as caught:
        fitted(30_000)
    needed = caught.value.needed_bytes
    part = fitted_intervals(program, hops, needed, gradients=gradients, beside=FILES)
    sized = hop_sizes(program, hops, part)
    plan_epoch(program, sized, part, needed, gradients=gradients, beside=FILES)
    with pytest.raises(BudgetError, match="for the objects of the plan"):
        plan_epoch(program, sized, part, needed // 2, gradients=gradients, beside=FILES)
