"""Orders: the same steps, in the order that the name says; states move where they must."""

from __future__ import annotations

from functools import cache
from typing import get_args

import pytest

from sagann.compiler.model_program import ModelProgram
from sagann.errors import InputError
from sagann.graph import Topology
from sagann.nn import build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import equal_vertices
from sagann.plan.epoch import plan_constants, plan_epoch
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.hops import CSC
from sagann.plan.orders import Order, require_order
from sagann.plan.residency import BudgetError, place
from sagann.plan.schedule import Schedule
from sagann.plan.sizes import needed_bytes
from sagann.plan.spec import verify
from sagann.plan.steps import UNLIMITED, Move, Plan, Step
from sagann.plan.sweeps import Traversal
from sagann.runtime.streaming.capturing import captured
from tests.graphs import labelled_graph

ORDERS: tuple[Order, ...] = get_args(Order)
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


def schedule_of(name: str, order: Order, *, folded: bool = False, traversal: Traversal | None = None) -> Schedule:
    program, hops = program_of(name)
    return Schedule(
        program, hop_sizes(program, hops, BOUNDS), BOUNDS, folded=folded, order=order, traversal=traversal
    )


def placed(schedule: Schedule, budget_bytes: int) -> Plan:
    return place(
        list(schedule.epoch()),
        bytes_of=schedule.sizes.of,
        initial=[*schedule.initial(), *schedule.upstream()],
        bounds=BOUNDS,
        budget_bytes=budget_bytes,
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("order", ORDERS)
def test_chunks_come_in_the_order_of_the_name(name: str, order: Order) -> None:
    ends: dict[tuple[str, int, int, bool], list[tuple[int, int]]] = {}
    for step in schedule_of(name, order, traversal=ASCENDING).epoch():
        if step.dst_interval >= 0:
            key = step.kind, step.number, step.backward_pass, step.reads[0].name != CSC
            ends.setdefault(key, []).append((step.interval, step.dst_interval))
    assert {kind for kind, *_ in ends} == {"gather", "gather_grad"}
    for (kind, _, _, over_csr), chunks in ends.items():
        by_column = sorted(chunks, key=lambda chunk: chunk[::-1])
        goes_by_column = not over_csr if order != "row" else kind == "gather_grad"
        assert chunks == (by_column if goes_by_column else sorted(chunks))


@pytest.mark.parametrize("name", MODELS)
def test_stage_order_gathers_all_before_any_vertex_goes_on(name: str) -> None:
    steps = list(schedule_of(name, "stage").epoch())
    gathered, differentiated = 0, 0
    for number, gather in enumerate(schedule_of(name, "stage").program.gathers):
        if not gather.constant:
            first = _first(steps, "transform", number + 1)
            assert _last(steps, "finish", number) < first
            assert _first(steps, "finish", number) + len(BOUNDS) < first, "the last chunks are of one interval only"
            gathered += 1
        if any(step.kind == "finish_grad" and step.number == number for step in steps):
            assert _last(steps, "finish_grad", number) < _first(steps, "transform_grad", number)
            differentiated += 1
    assert gathered
    assert differentiated


def _first(steps: list[Step], kind: str, number: int) -> int:
    return next(at for at, step in enumerate(steps) if (step.kind, step.number) == (kind, number))


def _last(steps: list[Step], kind: str, number: int) -> int:
    return max(at for at, step in enumerate(steps) if (step.kind, step.number) == (kind, number))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("order", ORDERS)
def test_what_the_hungriest_step_takes_is_enough(name: str, order: Order) -> None:
    schedule = schedule_of(name, order)
    steps = list(schedule.epoch())
    least = needed_bytes(steps, schedule.sizes.of)
    for budget_bytes in (least, 2 * least, UNLIMITED):
        verify(placed(schedule, budget_bytes), steps)
    with pytest.raises(BudgetError) as caught:
        placed(schedule, least - 1)
    assert caught.value.needed_bytes == least


@pytest.mark.parametrize("name", ["gat", "maxpool-gcn"])
def test_where_passes_take_more_than_stages_states_move_in_row_order_and_only_there(name: str) -> None:
    moved_bytes = {}
    for order in ORDERS:
        schedule = schedule_of(name, order)
        plan = placed(schedule, needed_bytes(list(schedule.epoch()), schedule.sizes.of))
        moves = [each for each in plan.operations if isinstance(each, Move) and each.kind == "store"]
        assert any(move.block.kind == "state" for move in moves) == (order == "row")
        moved_bytes[order] = plan.moved_bytes
    assert moved_bytes["column"] < moved_bytes["row"]


@pytest.mark.parametrize("order", ORDERS)
def test_intervals_are_fitted_to_every_order(order: Order) -> None:
    program, hops = program_of("gat")
    given = {"gradients": schedule_of("gat", order).gradients, "order": order, "same_memory": False}
    counts = []
    for budget_bytes in (1 << 30, 60_000, 30_000):
        bounds = fitted_intervals(program, hops, budget_bytes, **given).bounds
        sizes = hop_sizes(program, hops, bounds)
        for folded in (False, True):
            found = plan_epoch(program, sizes, bounds, budget_bytes, folded=folded, **given)
            assert found.plan.peak_bytes <= budget_bytes
        found = plan_constants(program, sizes, bounds, budget_bytes, same_memory=False)
        assert found.plan.peak_bytes <= budget_bytes
        counts.append(len(bounds) - 1)
    assert counts == sorted(counts)
    assert counts[0] == 1 < counts[-1]
    with pytest.raises(BudgetError, match=r"bytes\)?, at least .* are needed"):
        fitted_intervals(program, hops, 50, **given)


def test_an_unknown_order_is_refused() -> None:
    for order in ("rows", None, ["row"]):
        with pytest.raises(InputError, match=r"unknown order of the chunks: .* expected one of column, row, stage"):
            require_order(order)
