"""Where blocks lie: placement within a budget, and rows that are picked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from sagann.graph import Graph, relabel, sbm_graph
from sagann.nn import GNN, GatedGCN
from sagann.plan import ChunkGrid, equal_vertices
from sagann.plan.epoch import MEMORY_POLICIES, Planned, plan_epoch
from sagann.plan.fit import hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.hops import PICKED_CSC, PICKED_CSR
from sagann.plan.intervals import PartIntervals
from sagann.plan.residency import BudgetError, place
from sagann.plan.selection import ALWAYS, NEVER, Selection, needed_rows
from sagann.plan.spec import verify
from sagann.plan.steps import FILES, Move, Plan, Step
from sagann.runtime.streaming.capturing import captured
from tests.graphs import odd_topologies
from tests.plan.schedules import block, schedules, step


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_schedule_is_placed_within_its_budget(data: st.DataObject) -> None:
    small = data.draw(schedules())
    steps, bytes_of = list(small.steps), dict(small.sizes)
    budget = max(small.least_budget, 1) + data.draw(st.integers(0, 40))
    lookahead = data.draw(st.integers(0, 3))
    policy = data.draw(st.sampled_from(sorted(MEMORY_POLICIES)))

    def placed(budget: int) -> Plan:
        return MEMORY_POLICIES[policy](
            steps,
            bytes_of=bytes_of.__getitem__,
            initial=small.initial,
            bounds=(0, 1),
            budget_bytes=budget,
            lookahead=lookahead,
        )

    plan = placed(budget)
    assert [each for each in plan.operations if isinstance(each, Step)] == steps
    peaks = verify(plan, steps)
    assert max(peaks.values(), default=0) <= plan.peak_bytes <= plan.budget_bytes
    moves = [each for each in plan.operations if isinstance(each, Move)]
    assert all(each.num_bytes == bytes_of[each.block] for each in moves)
    with pytest.raises(BudgetError) as caught:
        placed(small.least_budget - 1)
    assert caught.value.needed_bytes >= small.least_budget


def test_what_rows_are_picked_of_is_stored_once_it_is_made() -> None:
    steps = [step([], [0]), step([], [1]), step([1], [], picked=[0])]
    plan = place(
        steps, bytes_of=lambda each: 4 if each.needed_by else 10, initial=[], bounds=(0, 1), budget_bytes=24
    )
    assert [each.block for each in plan.operations if isinstance(each, Move) and each.kind == "store"] == [block(0)]
    assert plan.operations.index(steps[0]) + 1 == plan.operations.index(Move("store", block(0), 10))
    assert plan.loaded_bytes == plan.picked_bytes == 4


def test_the_block_used_last_goes_first() -> None:
    steps = [step([0], []), step([1], []), step([2], []), step([0], []), step([1], []), step([2], [])]
    plan = place(
        steps, bytes_of=lambda _: 10, initial=map(block, range(3)), bounds=(0, 1), budget_bytes=20, lookahead=0
    )
    # Least recently used would load six times, Belady's choice four.
    assert plan.loaded_bytes == 40


def test_what_is_dropped_until_then_is_room_to_load_ahead() -> None:
    steps = [step([], [0]), *(step([0], []) for _ in range(5)), step([1], [2])]
    plan = place(steps, bytes_of=lambda _: 10, initial=[block(1)], bounds=(0, 1), budget_bytes=20)
    assert plan.operations.index(Move("load", block(1), 10)) < plan.operations.index(steps[1])


HALF = Selection(share=0.5)


@pytest.mark.parametrize("name", odd_topologies())
@pytest.mark.parametrize("selection", [HALF, ALWAYS, NEVER])
def test_the_needed_rows_are_those_with_edges(name: str, selection: Selection) -> None:
    topology = odd_topologies()[name]
    bounds = equal_vertices(topology.num_dst, 3)
    expected = {}
    for chunk in ChunkGrid(topology, bounds).chunks():
        ends = {PICKED_CSC: (chunk.topology.indices, chunk.src), PICKED_CSR: (chunk.topology.edge_dst(), chunk.dst)}
        for form, (ids, interval) in ends.items():
            needed, rows = len(ids.unique()), bounds[interval + 1] - bounds[interval]
            if needed < selection.share * rows:
                expected[form, chunk.src, chunk.dst] = needed
    assert needed_rows(topology, bounds, selection) == expected


def blocks(homophily: float, average_degree: float) -> Graph:
    drawn = {"num_classes": 8, "num_features": 16, "feature_noise": 0.1, "seed": 0}
    graph = sbm_graph(400, average_degree=average_degree, homophily=homophily, **drawn)
    return relabel(graph, graph.labels.sort(stable=True).indices)


def plan_of(graph: Graph, selection: Selection, budget_bytes: int = 40_000) -> Planned:
    model = GNN([GatedGCN(16, 16), GatedGCN(16, 8)])
    hops = graph.hops(2)
    program = captured(model, hops, graph.features, x_is_constant=True)
    bounds = equal_vertices(400, 8)
    sizes = hop_sizes(program, hops, PartIntervals.of_graph(bounds), selection)
    given = {"gradients": Gradients(program), "folded": True, "selection": selection, "beside": FILES}
    return plan_epoch(program, sizes, PartIntervals.of_graph(bounds), budget_bytes, **given)


def test_a_sparse_graph_with_locality_moves_less() -> None:
    graph = blocks(homophily=0.98, average_degree=6)
    never, picking = plan_of(graph, NEVER).plan, plan_of(graph, HALF).plan
    assert picking.picked_bytes > 0
    assert picking.moved_bytes < never.moved_bytes / 1.5


def test_on_a_dense_graph_or_with_room_for_all_nothing_is_picked() -> None:
    for homophily, average_degree, budget_bytes in ((0.2, 60, 40_000), (0.98, 6, 10 << 20)):
        graph = blocks(homophily, average_degree)
        assert plan_of(graph, HALF, budget_bytes).plan == plan_of(graph, NEVER, budget_bytes).plan


def test_how_few_rows_are_worth_it_does_not_decide_the_order_of_steps() -> None:
    # It is measured, and sums in another order have other last bits.
    graph = blocks(homophily=0.98, average_degree=6)

    def steps_of(selection: Selection) -> list[tuple[object, ...]]:
        operations = plan_of(graph, selection).plan.operations
        steps = [each for each in operations if isinstance(each, Step)]
        return [(step.kind, step.number, step.interval, step.dst_interval, step.backward_pass) for step in steps]

    assert plan_of(graph, HALF).schedule.selects
    kinds = {tuple(steps_of(Selection(share=share))) for share in (0.1, 0.9)}
    assert kinds == {tuple(steps_of(NEVER))}
