"""Which rows chunks need, and which of these are picked."""

from __future__ import annotations

import pytest

from sagann.graph import Graph, relabel, sbm_graph
from sagann.nn import GNN, GatedGCN
from sagann.plan import ChunkGrid, equal_vertices
from sagann.plan.beside import FILES
from sagann.plan.epoch import Planned, plan_epoch
from sagann.plan.fit import hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.hops import PICKED_CSC, PICKED_CSR
from sagann.plan.part_intervals import PartIntervals
from sagann.plan.selection import ALWAYS, NEVER, Selection, needed_rows
from sagann.plan.steps import Step
from sagann.runtime.streaming.capturing import captured
from tests.graphs import odd_topologies

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


def test_the_rule_compares_picking_and_moving_a_share_with_moving_all() -> None:
    selection = Selection.by_rates(pick_bytes=4.0, transfer_bytes=1.0)
    for share in (0.79, 0.81):
        takes_s = share / 4.0 + share / 1.0
        assert selection.picks(needed=round(100 * share), rows=100) == (takes_s < 1 / 1.0)
    assert not NEVER.picks(needed=0, rows=100)
    assert ALWAYS.picks(needed=100, rows=100)


def blocks(homophily: float, average_degree: float) -> Graph:
    drawn = {"num_classes": 8, "num_features": 16, "feature_noise": 0.1, "seed": 0}
    graph = sbm_graph(400, average_degree=average_degree, homophily=homophily, **drawn)
    assert graph.labels is not None
    return relabel(graph, graph.labels.sort(stable=True).indices)


def plan_of(graph: Graph, selection: Selection, budget_bytes: int = 40_000) -> Planned:
    model = GNN([GatedGCN(16, 16), GatedGCN(16, 8)])
    assert graph.features is not None
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
