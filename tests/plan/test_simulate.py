"""Seconds of plans: work, lanes and rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.nn import GNN, build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import equal_vertices
from sagann.plan.epoch import Planned
from sagann.plan.machine import Link, Machine
from sagann.plan.simulate import Tier, simulate
from sagann.plan.steps import UNLIMITED, Block, Move, Plan, Step, StepKind
from sagann.plan.timeline import Span, Timeline
from sagann.plan.work import Work
from sagann.runtime.forecasting.forecast import work_of
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, SagaLayer
from tests.graphs import labelled_graph
from tests.plan.machines import ROUND, with_disk

A, B, C = (Block("value", name, 0) for name in "abc")
# More cores than copies can take anything noticeable from.
MANY_CORES = with_disk(replace(ROUND, num_cores=1 << 20), read_bytes_per_s=1e3, write_bytes_per_s=1e3)
TIERS_OF_A_DEVICE: tuple[tuple[Tier, float, float], ...] = (
    ("memory", 0.5, 2.5),
    ("file cache", 0.5, 2.5),
    ("disk", 1.0, 2.5),
)
"And the seconds of a load and a store."


def step(*reads: Block, writes: tuple[Block, ...] = (), kind: str = "transform") -> Step:
    return Step(kind=kind, number=0, interval=0, reads=reads, writes=writes)  # type: ignore[arg-type]


def simulated(
    *operations: Step | Move, tier: Tier = "disk", budget_bytes: int = 1000, machine: Machine = MANY_CORES
) -> Timeline:
    plan = Plan(operations=operations, bounds=(0, 1), budget_bytes=budget_bytes, peak_bytes=0)
    return simulate(plan, lambda step: 1.0, machine, tier=tier)


def starts(timeline: Timeline) -> dict[str, list[float]]:
    lanes = ("compute", "load", "store")
    return {lane: [pytest.approx(span.start_s, abs=1e-4) for span in timeline.of(lane)] for lane in lanes}


def test_loads_run_beside_steps_one_after_the_other() -> None:
    found = simulated(Move("load", A, 500), Move("load", B, 1000), step(A), step(B))
    assert starts(found) == {"compute": [0.5, 1.5], "load": [0.0, 0.5], "store": []}
    assert found.seconds == pytest.approx(2.5, abs=1e-4)
    assert found.hidden == pytest.approx(1 / 1.5, abs=1e-4)


def test_a_store_is_waited_for_by_whoever_drops_or_changes_its_block() -> None:
    store = Move("store", A, 3000)
    assert simulated(step(writes=(A,)), store, step(B)).of("compute")[1].start_s == pytest.approx(1.0)
    assert simulated(step(writes=(A,)), store, step(A)).of("compute")[1].start_s == pytest.approx(1.0)
    for waits in ((Move("drop", A, 3000), step(B)), (step(writes=(A,)),)):
        found = simulated(step(writes=(A,)), store, *waits)
        assert found.of("compute")[1].start_s == pytest.approx(4.0, abs=1e-4)


def test_the_host_decides_the_rates() -> None:
    moves = (Move("load", A, 100), Move("store", B, 100))
    assert simulated(*moves, tier="memory", machine=ROUND).seconds == pytest.approx(0.2)
    assert simulated(*moves, machine=ROUND).seconds == pytest.approx(2.0)
    assert simulated(*moves, tier="file cache", machine=ROUND).seconds == pytest.approx(0.4 + 2.0)
    assert simulated(*moves, machine=ROUND, budget_bytes=UNLIMITED).seconds == 0.0


def test_within_memory_whatever_follows_a_copy_waits_for_it() -> None:
    moves = (Move("load", A, 500), Move("store", B, 100), Move("load", C, 400))
    found = simulated(*moves, step(A), step(C), tier="memory")
    assert starts(found) == {"compute": [1.0, 2.0], "load": [0.0, 0.6], "store": [0.5]}
    assert found.hidden == 0.0


def test_whatever_follows_a_load_from_the_file_cache_waits_for_it_and_stores_run_beside() -> None:
    moves = (Move("load", A, 500), Move("store", B, 1000), Move("load", C, 250))
    machine = with_disk(MANY_CORES, cached_bytes_per_s=500.0)
    found = simulated(*moves, step(A), step(C), tier="file cache", machine=machine)
    assert starts(found) == {"compute": [1.5, 2.5], "load": [0.0, 1.0], "store": [1.0]}


def test_copies_to_a_device_have_rates_of_their_own_and_take_no_core() -> None:
    machine = replace(ROUND, host_to_device_bytes=200.0, device_to_host_bytes=40.0)
    operations = (Move("load", A, 100), Move("store", B, 100), step(C), step(C))
    plan = Plan(operations=operations, bounds=(0, 1), budget_bytes=1000, peak_bytes=0)
    for tier, load_s, store_s in TIERS_OF_A_DEVICE:
        found = simulate(plan, lambda step: 1.0, machine, tier=tier)
        assert [span.seconds for span in found.of("load")] == [load_s]
        assert [span.seconds for span in found.of("store")] == [store_s]
        assert [span.seconds for span in found.of("compute")] == [1.0, 1.0]


def test_picked_rows_wait_for_the_store_of_what_they_are_picked_of() -> None:
    picked = A._replace(needed_by=Block("edges", "csc", 0, 0))
    operations = (step(writes=(A,)), Move("store", A, 1000), Move("load", picked, 100), step(picked))
    found = simulated(*operations, tier="memory")
    assert starts(found) == {"compute": [0.0, 2.2], "load": [2.0], "store": [1.0]}
    # From a disk rows come first, and are picked then.
    assert starts(simulated(*operations)) == {"compute": [0.0, 2.3], "load": [2.0], "store": [1.0]}


def test_a_copy_takes_a_core_from_the_step_beside_it() -> None:
    operations = (Move("load", A, 500), step(B), step(C))
    first, second = simulated(*operations, machine=with_disk(ROUND, read_bytes_per_s=1e3)).of("compute")
    # Half as fast for half a second.
    assert first.seconds == pytest.approx(1.25)
    assert second.seconds == pytest.approx(1.0)


def test_the_next_load_waits_for_what_leaves_and_a_step_does_not() -> None:
    moves = (Move("store", A, 500), Move("drop", A, 500), Move("load", B, 500))
    found = simulated(step(writes=(A,)), *moves, step(C), step(B))
    assert starts(found) == {"compute": [0.0, 1.0, 2.0], "load": [1.5], "store": [1.0]}
    # Where there is no room beside it, the step waits as well.
    found = simulated(step(writes=(A,)), *moves[:2], step(C), budget_bytes=499)
    assert starts(found)["compute"] == [0.0, 1.5]


def test_a_link_that_the_machine_has_not_is_named() -> None:
    operations = (step(writes=(A,)), Move("all-reduce", A, 10, resource="link0-1"), step(A))
    machine = replace(ROUND, links={"device0.copy_in": Link(bytes_per_s=100.0)})
    with pytest.raises(InputError, match=r"links are device0.copy_in.*\[links.\"link0-1\"\]"):
        simulated(*operations, machine=machine)


def test_the_backward_begins_with_its_first_step_and_the_forward_may_overlap() -> None:
    timeline = Timeline()
    assert timeline.turn_s is None
    timeline.spans = [
        Span(lane="compute", name="transform_loss 1: 0", start_s=0.0, seconds=4.0),
        Span(lane="load", name="grad x: 0", start_s=1.0, seconds=2.0),
        Span(lane="compute", name="finish_grad 0: 1", start_s=5.0, seconds=1.0),
        Span(lane="compute", name="prepare_grad 0: 1", start_s=4.0, seconds=1.0),
    ]
    assert timeline.turn_s == (4.0, 4.0)
    timeline.spans.append(Span(lane="compute", name="gather 0: 2 to 1", start_s=6.0, seconds=1.0))
    assert timeline.turn_s == (4.0, 7.0)


N, E, HIDDEN = 120, 700, 16


def works(name: str, num_intervals: int) -> tuple[Graph, list[tuple[Step, Work]]]:
    graph = labelled_graph(N, E)
    model = build_model(ModelConfig(model=name, hidden=HIDDEN, heads=2, dropout=0.0), graph)
    return works_of(model, model.prepare(graph), num_intervals)


def works_of(model: nn.Module, graph: Graph, num_intervals: int) -> tuple[Graph, list[tuple[Step, Work]]]:
    bounds = equal_vertices(N, num_intervals)
    streamed = StreamedModel(model, list(graph.hops(model.num_hops)), bounds)
    program, schedule, plan = streamed.plan(graph.features, folded=True)
    work = work_of(Planned(program, schedule, plan), graph.features)
    steps = [each for each in plan.operations if isinstance(each, Step) and each.kind != "return"]
    return graph, [(step, work.of(step)) for step in steps]


def total(found: list[tuple[Step, Work]], *kinds: StepKind) -> Work:
    return sum((work for step, work in found if step.kind in kinds), Work())


@pytest.mark.parametrize("num_intervals", [1, 3])
def test_products_and_rows_of_a_gcn(num_intervals: int) -> None:
    graph, found = works("gcn", num_intervals)
    classes, features = graph.num_classes, graph.num_features
    # The first layer's rows are gathered once; its map, and the second one's, which goes before its gather.
    assert total(found, "transform").flops == 2 * N * HIDDEN * (features + classes)
    # Both weights' gradients, and that of what the second map reads.
    assert total(found, "transform_grad").flops == 2 * N * HIDDEN * (features + 2 * classes)
    # With self-loops; rows of a float32 for every class.
    edges = graph.num_edges
    assert total(found, "gather").gather_bytes == edges * classes * 4
    assert total(found, "gather_grad").gather_bytes == edges * classes * 4
    assert total(found, "gather").exponentials == 0


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_maps_of_sparse_features_read_a_row_of_the_weight_for_each_nonzero() -> None:
    graph = labelled_graph(N, E)
    sparse = graph.features.clone()
    sparse[:, 3:] = 0
    graph = replace(graph, features=sparse.to_sparse_csr())
    model = build_model(ModelConfig(model="gcn", hidden=HIDDEN, dropout=0.5), graph)
    graph, found = works_of(model, model.prepare(graph), 2)
    nonzeros, classes = 3 * N, graph.num_classes
    # The first map reads features. Its weight's gradient reads as many rows; features have none.
    assert total(found, "transform").gather_bytes == pytest.approx(nonzeros * HIDDEN * 4)
    assert total(found, "transform_grad").gather_bytes == pytest.approx(nonzeros * HIDDEN * 4)
    assert total(found, "transform").flops == 2 * N * HIDDEN * classes
    assert total(found, "transform").gathered_from_bytes == graph.num_features * HIDDEN * 4


def test_maps_on_edges_cost_products() -> None:
    class EdgeNetwork(SagaLayer):
        def __init__(self, in_dim: int) -> None:
            super().__init__()
            self.linear = nn.Linear(in_dim, HIDDEN)

        def apply_edge(self, edge: Edge) -> Tensor:
            return self.linear(torch.relu(edge.src + edge.dst))

    graph = labelled_graph(N, E)
    graph, found = works_of(GNN([EdgeNetwork(graph.num_features)]), graph, 2)
    product = 2 * graph.num_edges * HIDDEN * graph.num_features
    assert total(found, "gather").flops == 2 * product
    # In the backward the weight's gradient, at least.
    assert total(found, "gather_grad").flops >= 2 * product


def test_gates_cost_exponentials() -> None:
    graph, found = works("gated-gcn", 2)
    assert total(found, "gather").exponentials == graph.num_edges * (graph.num_features + HIDDEN)


def test_seconds_follow_from_rates() -> None:
    assert Work(flops=2e9).seconds(ROUND) == pytest.approx(2.0)
    assert Work(stream_bytes=3e9).seconds(ROUND) == pytest.approx(3.0)
    assert Work(exponentials=1e9).seconds(ROUND) == pytest.approx(1.0)
    # All in cache, and half of it.
    assert Work(gather_bytes=1e9, gathered_from_bytes=1 << 20).seconds(ROUND) == pytest.approx(1.0)
    assert Work(gather_bytes=1e9, gathered_from_bytes=1 << 21).seconds(ROUND) == pytest.approx(0.5 + 5.0)
