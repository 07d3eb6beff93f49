"""The order of steps, and of the chunks that sweeps visit."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from sagann.compiler.model_program import ModelProgram
from sagann.graph import Topology
from sagann.nn import build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import equal_vertices
from sagann.plan.epoch import plan_epoch
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.hops import CSC
from sagann.plan.intervals import PartIntervals
from sagann.plan.residency import BudgetError, place
from sagann.plan.schedule import Schedule
from sagann.plan.sizes import BlockSizes, needed_bytes
from sagann.plan.spec import verify
from sagann.plan.steps import ALL, FILES, UNLIMITED, Move, Plan, Step
from sagann.plan.sweeps import PassKey, Sweeps, Traversal, chunk_ends
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


def test_a_pass_has_a_chunk_for_each_interval_where_rows_are_undivided() -> None:
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


COUNT = len(BOUNDS) - 1
MOST_PASSES = 2
"Layers, and passes of a gather's backward."


def keys() -> list[PassKey]:
    forward = [PassKey("gather", number) for number in range(MOST_PASSES)]
    backward = [
        PassKey("gather_grad", number, each + 1) for number in range(MOST_PASSES) for each in range(MOST_PASSES)
    ]
    return forward + backward


def any_visits() -> st.SearchStrategy[Traversal]:
    order = st.permutations(range(COUNT)).map(tuple)
    strips = st.tuples(st.sampled_from(keys()), st.integers(0, COUNT - 1))
    return st.builds(
        Traversal,
        direction=st.sampled_from(["ascending", "zigzag"]),
        widths=st.dictionaries(st.sampled_from(keys()), st.integers(1, COUNT)),
        refined=st.dictionaries(strips, order),
    )


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["gat", "maxpool-gcn"]), any_visits(), st.booleans())
def test_any_order_of_visits_gives_a_valid_plan(name: str, traversal: Traversal, folded: bool) -> None:
    schedule = schedule_of(name, folded=folded, traversal=traversal)
    steps = list(schedule.epoch())
    usual = Counter(map(_identity, schedule_of(name, folded=folded).epoch()))
    assert Counter(map(_identity, steps)) == usual
    for budget_bytes in (needed_bytes(steps, schedule.sizes.of), UNLIMITED):
        verify(placed(schedule, budget_bytes), steps)


def _identity(step: Step) -> tuple[object, ...]:
    """What a step does; whether its state was begun before depends on the order."""
    reads = frozenset(block for block in step.reads if block.kind != "state")
    return step.kind, step.number, step.backward_pass, step.interval, step.dst_interval, reads, step.writes


@settings(max_examples=12, deadline=None)
@given(any_visits())
def test_extrema_meet_their_chunks_in_ascending_order(traversal: Traversal) -> None:
    met: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for step in schedule_of("maxpool-gcn", traversal=traversal).epoch():
        if step.kind == "gather":
            met[step.number, step.dst_interval].append(step.interval)
    assert all(others == sorted(others) for others in met.values())
    assert met


def test_chunks_zigzag_from_strip_to_strip() -> None:
    key = PassKey("gather", 0)
    (one, two), (three, four) = (Sweeps(Traversal(widths={key: 2}), 3).strips(key) for _ in range(2))
    assert (one, two) == (three, four) == (((0, 1), (0, 1, 2)), ((2,), (2, 1, 0)))
    ends = [
        ends
        for step in schedule_of("gated-gcn").epoch()
        if (ends := chunk_ends(step)) is not None and ends[0] == key
    ]
    # Downwards: the first stage went up.
    assert [ends[1:] for ends in ends[: COUNT + 1]] == [*((3, other) for other in (3, 2, 1, 0)), (2, 0)]


def test_strips_are_as_wide_as_memory_allows_and_move_fewer_bytes() -> None:
    program, hops = program_of("gated-gcn")
    gradients = schedule_of("gated-gcn").gradients
    won = []
    for budget_bytes in (20_000, 40_000, 1 << 30):
        part = fitted_intervals(program, hops, budget_bytes, gradients=gradients, beside=FILES, is_square=True)
        sizes = hop_sizes(program, hops, part)
        moved = {}
        for traversal in (None, Traversal(), Traversal(direction="ascending")):
            found = plan_epoch(
                program, sizes, part, budget_bytes, gradients=gradients, traversal=traversal, beside=FILES
            )
            assert found.plan.peak_bytes <= budget_bytes
            moved[None if traversal is None else traversal.direction] = found.plan.moved_bytes
        assert moved[None] <= moved["zigzag"] <= moved["ascending"]
        won.append(moved[None] / moved["ascending"])
    assert min(won) < 0.9
    assert won[-1] == 1.0, "where everything fits there is nothing to gain"
