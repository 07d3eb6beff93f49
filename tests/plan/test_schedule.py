"""Schedules go over the chunk grid by columns forward and by rows backward, and fit what their hungriest step takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from sagann.compiler.model_program import ModelProgram
from sagann.graph import Topology
from sagann.nn import build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import equal_vertices
from sagann.plan.beside import FILES
from sagann.plan.epoch import plan_constants, plan_epoch
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.hops import CSC
from sagann.plan.part_intervals import PartIntervals
from sagann.plan.residency import BudgetError, place
from sagann.plan.schedule import Schedule
from sagann.plan.sides import undivided_of
from sagann.plan.sizes import BlockSizes, needed_bytes
from sagann.plan.spec import verify
from sagann.plan.steps import ALL, UNLIMITED, Move, Plan, Step
from sagann.plan.sweeps import Traversal
from sagann.runtime.streaming.capturing import captured
from tests.graphs import labelled_graph

MODELS = ["gcn", "gat", "maxpool-gcn"]
BOUNDS = equal_vertices(200, 4)
ASCENDING = Traversal(direction="ascending")


@cache
def program_of(name: str) -> tuple[ModelProgram, list[Topology]]:
    graph = labelled_graph(200, 900)
    model = build_model(ModelConfig(model=name, hidden=16, heads=2, layers=2, dropout=0.0), graph)
    graph = model.prepare(graph)
    assert graph.features is not None
    hops = list(graph.hops(model.num_hops))
    return captured(model, hops, graph.features, x_is_constant=True), hops


def schedule_of(name: str, *, folded: bool = False, traversal: Traversal | None = None) -> Schedule:
    program, hops = program_of(name)
    blocks = BlockSizes(
        program,
        hop_sizes(program, hops, PartIntervals.of_graph(BOUNDS)),
        PartIntervals.of_graph(BOUNDS),
        Gradients(program),
    )
    return Schedule(blocks, folded=folded, traversal=traversal)


def placed(schedule: Schedule, budget_bytes: int) -> Plan:
    return place(
        list(schedule.epoch()),
        bytes_of=schedule.sizes.of,
        initial=[*schedule.initial(), *schedule.upstream()],
        bounds=BOUNDS,
        budget_bytes=budget_bytes,
    )


@pytest.mark.parametrize("name", MODELS)
def test_chunks_come_by_columns_forward_and_by_rows_backward(name: str) -> None:
    ends: dict[tuple[str, int, int, bool], list[tuple[int, int]]] = {}
    for step in schedule_of(name, traversal=ASCENDING).epoch():
        if step.dst_interval >= 0:
            key = step.kind, step.number, step.backward_pass, step.reads[0].name != CSC
            ends.setdefault(key, []).append((step.interval, step.dst_interval))
    assert {kind for kind, *_ in ends} == {"gather", "gather_grad"}
    for (_, _, _, over_csr), chunks in ends.items():
        assert chunks == (sorted(chunks) if over_csr else sorted(chunks, key=lambda chunk: chunk[::-1]))


@pytest.mark.parametrize("name", MODELS)
def test_what_the_hungriest_step_takes_is_enough_and_states_stay(name: str) -> None:
    schedule = schedule_of(name)
    steps = list(schedule.epoch())
    least = needed_bytes(steps, schedule.sizes.of)
    for budget_bytes in (least, 2 * least, UNLIMITED):
        plan = placed(schedule, budget_bytes)
        verify(plan, steps)
        stored = [each.block.kind for each in plan.operations if isinstance(each, Move) and each.kind == "store"]
        assert "state" not in stored
    with pytest.raises(BudgetError) as caught:
        placed(schedule, least - 1)
    assert caught.value.needed_bytes == least


def test_intervals_are_fitted_to_budgets() -> None:
    program, hops = program_of("gat")
    given = {"gradients": schedule_of("gat").gradients, "beside": FILES}
    counts = []
    for budget_bytes in (1 << 30, 60_000, 30_000):
        part = fitted_intervals(program, hops, budget_bytes, **given)
        sizes = hop_sizes(program, hops, part)
        for folded in (False, True):
            found = plan_epoch(program, sizes, part, budget_bytes, folded=folded, **given)
            assert found.plan.peak_bytes <= budget_bytes
        found = plan_constants(program, sizes, part, budget_bytes, beside=FILES)
        assert found.plan.peak_bytes <= budget_bytes
        counts.append(len(part.own))
    assert counts == sorted(counts)
    assert counts[0] == 1 < counts[-1]
    with pytest.raises(BudgetError, match=r"bytes\)?, at least .* are needed"):
        fitted_intervals(program, hops, 50, **given)


def test_rows_that_passes_read_at_random_are_loaded_once_a_pass() -> None:
    program, hops = program_of("gcn")
    gradients = Gradients(program)
    undivided = undivided_of(program, gradients)
    assert sorted(kind for kind, _ in undivided) == ["grad_inputs", "value"]
    part = replace(PartIntervals.of_graph(BOUNDS), undivided=undivided)
    plan = plan_epoch(
        program, hop_sizes(program, hops, part), part, UNLIMITED, gradients=gradients, beside=FILES
    ).plan
    passes = [step for step in plan.operations if isinstance(step, Step) and step.kind.startswith("gather")]
    assert [(step.interval == ALL, step.dst_interval == ALL) for step in passes] == [(True, False)] * 4 + [
        (False, True)
    ] * 4


def test_a_backward_that_asks_for_ids_of_edges_needs_square_chunks() -> None:
    program, _ = program_of("maxpool-gcn")
    assert undivided_of(program, Gradients(program)) == frozenset()
