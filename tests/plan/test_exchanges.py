"""What workers exchange in a plan, and when it travels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import get_args

import pytest
from torch import nn

from sagann.graph import Graph
from sagann.nn import GCN, ModelConfig, build_model
from sagann.plan.epoch import MemoryPolicy, Planned, plan_constants, plan_epoch
from sagann.plan.exchanges import travelling
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import PartIntervals
from sagann.plan.residency import BudgetError
from sagann.plan.schedule import Schedule
from sagann.plan.sizes import BlockSizes, needed_bytes
from sagann.plan.spec import PlanError, verify
from sagann.plan.steps import FILES, UNLIMITED, Block, Exchanged, Move, Plan, Step
from sagann.plan.waits import waits_of
from sagann.runtime.workers import WorkerPart
from tests.graphs import labelled_graph
from tests.parts import cut_all, parts_of, program_of
from tests.runtime.workers.exactness_driver import Jumping, graph_of

MODELS = ["gcn", "gat", "ggnn", "jumping"]
BAND = "a band"
"Most intervals have no edge from the halo, and no row that others need: exchanges end at the last ones."
COUNTS = (4, 6, 3)


@cache
def case(name: str) -> tuple[nn.Module, Graph]:
    graph = labelled_graph(50, 300, types=2 if name == "ggnn" else 0)
    if name == "jumping":
        return Jumping(), graph
    if name == BAND:
        band = graph_of([(vertex, vertex + step) for step in (1, -1) for vertex in range(1, 199)], 200)
        return build_model(ModelConfig(model="sage", hidden=32, layers=2), band), band
    dropout = 0.2 if name in ("gat", "ggnn") else 0.0
    model = build_model(ModelConfig(model=name, hidden=16, heads=2, layers=2, dropout=dropout), graph)
    return model, model.prepare(graph)


@cache
def cuts_of(name: str) -> list[tuple[WorkerPart, PartIntervals]]:
    return cut_all(case(name)[1], COUNTS)


def planned(
    name: str,
    part: WorkerPart,
    intervals: PartIntervals,
    budget_bytes: int,
    *,
    policy: MemoryPolicy = "belady",
    folded: bool = True,
    trains: bool = True,
) -> list[Planned]:
    """The plans of the constants and of an epoch."""
    model, _ = case(name)
    program, hops = program_of(model, part, model.num_hops), part.hops(model.num_hops)
    given = program, hop_sizes(program, hops, intervals), intervals, budget_bytes
    options = {"memory_policy": policy, "beside": FILES}
    epoch = plan_epoch(*given, gradients=Gradients(program), folded=folded, trains=trains, **options)
    return [plan_constants(*given, **options), epoch]


def exchanges_of(plan: Plan) -> list[tuple[str, bool]]:
    """Values of the exchanges, and whether their gradients travel, in the order in which they begin."""
    steps = [each for each in plan.operations if isinstance(each, Step) and each.kind == "begin_exchange"]
    return [step.exchanged.key for step in steps if step.exchanged is not None]


def travelling_in(plan: Plan, *, is_grad: bool) -> list[str]:
    return [value for value, of_grad in exchanges_of(plan) if of_grad == is_grad]


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_plans_keep_every_rule_and_all_workers_exchange_alike(name: str, *, folded: bool) -> None:
    found = []
    for part, intervals in cuts_of(name):
        roomy = planned(name, part, intervals, UNLIMITED, folded=folded)
        needed = least_budget(name, part, intervals, folded=folded)
        tight = planned(name, part, intervals, needed, folded=folded)
        for each in (*roomy, *tight):
            steps = [step for step in each.plan.operations if isinstance(step, Step)]
            assert (
                max(verify(each.plan, steps).values(), default=0) <= each.plan.peak_bytes <= each.plan.budget_bytes
            )
        found += [[exchanges_of(each.plan) for each in plans] for plans in (roomy, tight)]
    assert all(each == found[0] for each in found)
    _, epoch = found[0]
    assert any(is_grad for _, is_grad in epoch)


def least_budget(name: str, part: WorkerPart, intervals: PartIntervals, *, folded: bool) -> int:
    """Bytes of the hungriest step, of constants and epochs in which no stage saves."""
    model, _ = case(name)
    program, hops = program_of(model, part, model.num_hops), part.hops(model.num_hops)
    blocks = BlockSizes(program, hop_sizes(program, hops, intervals), intervals, Gradients(program))
    schedule = Schedule(blocks, folded=folded)
    return max(needed_bytes(list(steps), schedule.sizes.of) for steps in (schedule.constants(), schedule.epoch()))


@pytest.mark.parametrize("policy", get_args(MemoryPolicy))
@pytest.mark.parametrize("name", MODELS)
def test_every_memory_policy_places_the_exchange(name: str, policy: MemoryPolicy) -> None:
    part, intervals = cuts_of(name)[1]
    budget_bytes = least_budget(name, part, intervals, folded=True) * 5 // 4
    for found in planned(name, part, intervals, budget_bytes, policy=policy):
        verify(found.plan)


@pytest.mark.parametrize("name", MODELS)
def test_every_value_travels_once_in_a_forward_and_its_gradient_once(name: str) -> None:
    part, intervals = cuts_of(name)[0]
    constants, epoch = (each.plan for each in planned(name, part, intervals, UNLIMITED))
    forward, backward = (travelling_in(epoch, is_grad=is_grad) for is_grad in (False, True))
    assert len(set(forward)) == len(forward)
    assert len(set(backward)) == len(backward)
    assert set(backward) <= set(forward)
    # Rows of constant features, or what is gathered of them, are kept: the rows travel once for all epochs.
    assert exchanges_of(constants) == [("x", False)] * (name == "gcn")
    assert "x" not in forward
    evaluation = planned(name, part, intervals, UNLIMITED, folded=False, trains=False)[1].plan
    assert exchanges_of(evaluation) == [(value, False) for value in forward]


@pytest.mark.parametrize("name", ["gcn", "gat", "jumping", BAND])
@pytest.mark.parametrize("share", [1, 1.3, 3])
def test_bounds_that_are_fitted_to_a_budget_fit_it(name: str, share: float) -> None:
    model, graph = case(name)
    for part in parts_of(graph, 2):
        program, hops = program_of(model, part, model.num_hops), part.hops(model.num_hops)
        options = {"gradients": Gradients(program), "beside": FILES, "cut_part": part.blocks.cut}
        with pytest.raises(BudgetError) as refused:
            fitted_intervals(program, hops, 1, **options)
        budget_bytes = int(share * refused.value.needed_bytes)
        intervals = fitted_intervals(program, hops, budget_bytes, **options)
        for folded in (True, False):
            for found in planned(name, part, intervals, budget_bytes, folded=folded):
                verify(found.plan)


GRAPH = GCN.prepare(labelled_graph(200, 900))


def test_sources_ascend_by_their_ids_in_the_graph() -> None:
    for part, intervals in cut_all(GRAPH, (2, 3, 2)):
        ids = [*range(part.vertices.start, part.vertices.stop), *part.halo.part.halo.tolist()]
        in_order = [ids[at] for number in intervals.sources for at in range(*intervals.bounds[number : number + 2])]
        assert in_order == sorted(ids)


BEGINS, ENDS = "begin_exchange", ("exchange", "exchange_grad")


def value(name: str, interval: int) -> Block:
    return Block("value", name, interval)


def sent(name: str, interval: int) -> Block:
    return Block("sent", name, interval, 1)


def made(name: str, interval: int) -> Iterator[Step]:
    """An interval of a value is made, and what others need of it is copied."""
    yield Step("transform", 0, interval, writes=(value(name, interval),), temporary_bytes=7)
    yield Step("collect", 0, interval, reads=(value(name, interval),), writes=(sent(name, interval),))


def exchange(name: str, sends: Sequence[int], receives: Sequence[int]) -> Step:
    exchanged = Exchanged(
        name, tuple(sent(name, each) for each in sends), tuple(value(name, each) for each in receives)
    )
    return Step("exchange", 0, 0, exchanged=exchanged)


def gather(name: str, src: int, dst: int = 0) -> Step:
    return Step("gather", 0, src, dst, reads=(value(name, src),), temporary_bytes=5)


def kinds(steps: Sequence[Step]) -> list[str]:
    return [f"{step.kind} {step.exchanged.value}" if step.exchanged else step.kind for step in steps]


def test_rows_travel_from_where_the_first_are_made_to_where_one_is_read() -> None:
    gathers = [gather("h", src) for src in range(3)]
    steps = [*made("h", 0), *made("h", 1), exchange("h", [0, 1], [2]), *gathers, Step("finish", 0, 0)]
    found = travelling(steps)
    assert ", ".join(kinds(found)) == (
        "transform, begin_exchange h, collect, transform, send_rows h, collect, send_rows h, "
        "gather, gather, exchange h, gather, finish"
    )


def steps_of(found: Planned) -> list[Step]:
    return [each for each in found.plan.operations if isinstance(each, Step)]


def spans(steps: Sequence[Step]) -> Iterator[tuple[Exchanged, list[Step]]]:
    """Each exchange with the steps that run while it is under way."""
    for number, step in enumerate(steps):
        if step.kind == BEGINS and step.exchanged is not None:
            key = step.exchanged.key
            length = next(
                at
                for at, each in enumerate(steps[number:])
                if each.kind in ENDS and each.exchanged and each.exchanged.key == key
            )
            yield step.exchanged, steps[number + 1 : number + length]


@pytest.mark.parametrize("name", MODELS)
def test_chunks_of_own_vertices_are_gathered_while_rows_travel(name: str) -> None:
    for part, intervals in cuts_of(name):
        for found in planned(name, part, intervals, UNLIMITED):
            for exchanged, meanwhile in spans(steps_of(found)):
                assert any(step.kind == "send_rows" for step in meanwhile) == bool(exchanged.sends)
                if exchanged.is_grad:
                    # Gradients of the halo leave one by one, and then own rows are worked on.
                    last = max((at for at, each in enumerate(meanwhile) if each.kind == "send_rows"), default=-1)
                    assert any(each.kind == "gather_grad" for each in meanwhile[last + 1 :])
                    continue
                if not any(step.kind == "gather" for step in steps_of(found)):
                    # Features alone are kept for the epochs.
                    assert exchanged.value == "x"
                    continue
                chunks = [step for step in meanwhile if step.kind == "gather"]
                read = {block for step in chunks for block in step.reads}
                assert not read & set(exchanged.receives)
                own = {value(exchanged.value, interval) for interval in intervals.own}
                assert read & own


def plan_with(operations: Sequence[Step | Move]) -> Plan:
    return Plan(operations=tuple(operations), bounds=(0, 1), budget_bytes=UNLIMITED, peak_bytes=UNLIMITED)


ROWS = sent("h", 0)
EXCHANGED = Exchanged("h", (ROWS,), (value("h", 2),))
BEGIN = Step("begin_exchange", 0, 0, exchanged=EXCHANGED)
MAKE = Step("collect", 0, 0, writes=(ROWS,))
STORE, DROP = Move("store", ROWS, 8), Move("drop", ROWS, 8)
SEND = Step("send_rows", 0, 0, exchanged=EXCHANGED._replace(receives=()))
END = Step("exchange", 0, 0, exchanged=EXCHANGED._replace(sends=()))


def test_a_load_of_what_comes_waits_for_the_end_of_the_exchange_and_what_is_sent_is_stored() -> None:
    picked = value("h", 2)._replace(needed_by=Block("edges", "csc", 2, 0))
    loads = [Move("load", value("h", 2), 8), Move("load", picked, 8)]
    operations = [BEGIN, MAKE, STORE, DROP, SEND, END, *loads]
    verify(plan_with(operations[:6]))
    found = waits_of(operations, UNLIMITED, has_engines=False)
    assert found[operations.index(SEND)] == (operations.index(STORE),)
    assert found[operations.index(END)] == ()
    assert all(operations.index(END) in found[operations.index(load)] for load in loads)


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([MAKE, STORE, DROP, SEND, END], "no exchange of h has begun"),
        ([BEGIN, BEGIN], "h travels already"),
        ([BEGIN, MAKE, DROP, SEND, END], "is sent and does not lie outside"),
        (
            [BEGIN, MAKE, STORE, DROP, SEND, END, BEGIN, Move("load", value("h", 2), 8)],
            "does not lie outside as it was written last",
        ),
        ([BEGIN, MAKE, STORE, DROP, SEND, SEND], "is sent twice, or is not what the exchange began with"),
        ([BEGIN, MAKE, STORE, DROP, END], "ends before all is sent"),
        ([BEGIN, MAKE, STORE, SEND, MAKE, DROP, END], "is written while it travels"),
        (
            [BEGIN, MAKE, STORE, DROP, SEND, replace(END, exchanged=EXCHANGED._replace(sends=(), receives=()))],
            "brings other blocks than it began with",
        ),
        ([BEGIN, MAKE, STORE, DROP, SEND], "the exchange of h never ends"),
    ],
)
def test_a_plan_that_breaks_a_rule_of_exchanges_is_refused(operations: Sequence[Step | Move], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        verify(plan_with(operations))
