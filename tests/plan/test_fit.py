"""Budgets: how many intervals fit them, and what plans and their objects take."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from sagann.byte_size import with_exact
from sagann.errors import InputError
from sagann.graph import Graph
from sagann.nn import build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import equal_vertices, sizes
from sagann.plan.epoch import plan_epoch
from sagann.plan.fit import USEFUL_INTERVALS, fitted_intervals, hop_sizes, least_count
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import PartIntervals
from sagann.plan.residency import BudgetError
from sagann.plan.sizes import needed_bytes, plan_bytes
from sagann.plan.steps import FILES
from sagann.runtime.streaming.stream import stream
from tests.graphs import labelled_graph
from tests.plan.test_schedule import program_of
from tests.tolerances import assert_close


def test_the_least_count_is_the_least() -> None:
    def needed(count: int) -> int:
        return 1000 // count + 10

    for budget in (2000, 600, 100, 35, 21):
        count = least_count(needed, budget, most=500)
        assert needed(count) <= budget
        assert count == 1 or needed(count - 1) > budget
    assert needed(least_count(needed, 11, most=500)) == 12


@pytest.mark.parametrize("best", [1, 2, 3, 11, 23, 40, 77, 300])
def test_a_budget_that_is_named_can_be_met(best: int) -> None:
    def needed(count: int) -> int:
        # As it is: coarse cuts have large blocks, fine ones a cost for every chunk.
        return 100 * max(best, count) ** 2 // min(best, count) ** 2

    named = needed(least_count(needed, 99, most=256))
    assert needed(least_count(needed, named, most=256)) <= named
    # No worse than where the best number lies between two that are tried.
    assert named <= 140


def test_a_budget_that_is_offered_leads_to_few_intervals(tmp_path: Path) -> None:
    graph = labelled_graph(5000, 10_000)
    model = build_model(ModelConfig(model="sage", hidden=16), graph)
    with pytest.raises(BudgetError) as refused:
        stream(model, graph, budget_bytes=50, spill=tmp_path)
    error = refused.value
    assert f"at least {with_exact(error.needed_bytes)} are needed" in error.message
    assert error.hint == (
        f"Raise the budget (--memory, budget_bytes) to {with_exact(error.offered_bytes)} or more. The least that is accepted is "
        f"{with_exact(error.needed_bytes)}, with more intervals and slower epochs."
    )
    with pytest.raises(
        BudgetError, match=r"in the plan of 2 intervals.* or cut into more intervals \(num_intervals\)\."
    ):
        stream(model, graph, budget_bytes=5000, num_intervals=2)(graph.features)
    counts = [
        len(stream(model, graph, budget_bytes=each, spill=tmp_path).bounds) - 1
        for each in (error.needed_bytes, error.offered_bytes)
    ]
    assert USEFUL_INTERVALS // 2 < counts[1] <= USEFUL_INTERVALS < 100 < counts[0]


def model_and_graph(name: str, num_vertices: int, num_edges: int) -> tuple[nn.Module, Graph]:
    graph = labelled_graph(num_vertices, num_edges)
    model = build_model(ModelConfig(model=name, hidden=16, heads=2), graph)
    return model, model.prepare(graph)


@pytest.mark.parametrize(("name", "on_disk"), [("gcn", False), ("gat", True)])
def test_a_budget_decides_the_number_of_intervals(name: str, tmp_path: Path, *, on_disk: bool) -> None:
    model, graph = model_and_graph(name, 200, 900)
    counts = []
    for budget in (1 << 30, 60_000, 30_000, 20_000):
        spill = tmp_path if on_disk else None
        streamed = stream(model, graph, budget_bytes=budget, spill=spill)
        _, schedule, plan = streamed.plan(graph.features)
        assert needed_bytes(list(schedule.epoch()), schedule.sizes.of) <= plan.peak_bytes <= budget
        counts.append(plan.num_intervals)
        streamed(graph.features).sum().backward()
    assert counts == sorted(counts)
    assert counts[0] == 1 < counts[-1]
    with pytest.raises(BudgetError, match=r"bytes\)?, at least .* are needed"):
        stream(model, graph, budget_bytes=50)


@pytest.mark.parametrize(("name", "on_disk"), [("gcn", False), ("gat", True)])
def test_what_is_evaluated_only_needs_less(name: str, tmp_path: Path, *, on_disk: bool) -> None:
    model, graph = model_and_graph(name, 60, 270)
    spill = tmp_path if on_disk else None
    with pytest.raises(BudgetError) as refused:
        stream(model, graph, budget_bytes=50)
    budget = refused.value.needed_bytes
    room = 3 * budget
    trained = stream(model, graph, budget_bytes=room, spill=spill)
    model.eval()
    evaluated = stream(model, graph, budget_bytes=room, spill=spill, trains=False)
    assert len(evaluated.bounds) < len(trained.bounds)
    with torch.no_grad():
        assert evaluated.plan(graph.features).plan.peak_bytes <= room
        assert_close(evaluated(graph.features), model(graph.hops(2), graph.features))
        less = stream(model, graph, budget_bytes=budget - 1, spill=spill, trains=False)
        assert_close(less(graph.features), model(graph.hops(2), graph.features))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_features_are_needed() -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gcn", hidden=4), graph)
    prepared = model.prepare(graph)
    with pytest.raises(InputError, match="a graph that is streamed needs features: there are none"):
        stream(model, replace(prepared, features=None), budget_bytes=1 << 30)
    coo = torch.ones(53, 8).to_sparse_coo()
    with pytest.raises(InputError, match="needs features: they are"):
        stream(model, replace(prepared, features=coo), budget_bytes=1 << 30)


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
