"""Plans of workers' parts keep every rule and the budget, and all workers exchange the same in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import get_args

import pytest
from torch import nn

import sagann
from sagann.graph import Graph
from sagann.nn import GCN, GNN, ModelConfig, build_model
from sagann.plan.beside import FILES
from sagann.plan.epoch import MemoryPolicy, Planned, plan_constants, plan_epoch
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.part_intervals import PartIntervals
from sagann.plan.residency import BudgetError
from sagann.plan.schedule import Schedule
from sagann.plan.sizes import BlockSizes, needed_bytes
from sagann.plan.spec import verify
from sagann.plan.steps import UNLIMITED, Plan, Step
from sagann.runtime.workers import WorkerPart
from tests.graphs import labelled_graph
from tests.parts import cut_all, parts_of, program_of
from tests.runtime.workers.exactness_driver import graph_of

MODELS = ["gcn", "gat", "ggnn", "sums"]
BAND = "a band"
"Most intervals have no edge from the halo, and no row that others need: exchanges end at the last ones."
COUNTS = (4, 6, 3)


class Sum(sagann.SagaLayer):
    """The sum of the in-neighbours' rows, so that what one layer gathers is what the next one reads."""

    accumulator = "sum"

    def apply_vertex(self, vertex: object, accum: object) -> object:
        return accum


class Sums(nn.Module):
    """A map, two sums, and a map of both."""

    num_hops = 2

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 6), nn.Linear(6, 3)
        self.one, self.two = Sum(), Sum()

    def forward(self, hops: Sequence[object], x: object) -> object:
        h = self.one(hops[0], self.before(x))
        return self.after(self.two(hops[1], h) + h)


@cache
def case(name: str) -> tuple[nn.Module, Graph]:
    graph = labelled_graph(50, 300, types=2 if name == "ggnn" else 0)
    if name == "sums":
        return Sums(), graph
    if name == BAND:
        band = graph_of([(vertex, vertex + step) for step in (1, -1) for vertex in range(1, 199)], 200)
        return build_model(ModelConfig(model="sage", hidden=32, layers=2), band), band
    dropout = 0.2 if name in ("gat", "ggnn") else 0.0
    model = build_model(ModelConfig(model=name, hidden=16, heads=2, layers=2, dropout=dropout), graph)
    assert isinstance(model, GNN)
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


@pytest.mark.parametrize("name", ["gcn", "gat", "sums", BAND])
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
